"""Batch benchmarks: a YAML file to cells, their price, their results. Reading and planning import no torch."""
