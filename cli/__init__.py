"""The command line: words to values and values to screens; whatever thinks lives in the library."""
