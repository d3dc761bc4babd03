"""The single checks, in the order in which a table shows them."""
