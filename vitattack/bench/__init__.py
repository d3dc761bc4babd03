"""Batch benchmarks: cells from a YAML file, their cost, their execution, and their comparison with published numbers."""
