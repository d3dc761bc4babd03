"""One HTML file from stored runs: everything in it, nothing fetched, readable without its script."""
