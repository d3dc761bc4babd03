"""Cost of benchmarks before they run, and checks that a run would succeed."""
