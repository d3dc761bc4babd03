"""`python -m vitattack.cli`: the same as `vitattack`."""

from .main import main

main()
