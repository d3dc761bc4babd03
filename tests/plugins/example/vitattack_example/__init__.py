"""A package that adds to vitattack without a change there."""
