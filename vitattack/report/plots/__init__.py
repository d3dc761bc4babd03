"""The figures of an overview on paper: matplotlib, for columns of one and two widths."""
