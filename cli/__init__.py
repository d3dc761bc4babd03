"""The command line: words to values and values to screens; all logic is in the library."""
