"""Records of what the code computed, and the proof that it still does.

`python -m tests.golden.record --check` runs every case and compares: code 1 on a difference that `cases.py` does not
list. A change that is meant to move numbers says so in `LISTED`, or records the cases anew; a text that is renamed goes
into `RENAMED`. `make test` runs the cases in `FAST`, `make test-slow` the others.
"""
