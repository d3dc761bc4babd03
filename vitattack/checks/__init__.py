"""Whether a robust-accuracy number can be believed: a test with planted examples, and a list of checks with a verdict."""
