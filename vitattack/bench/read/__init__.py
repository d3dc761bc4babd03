"""Benchmark files read and checked without torch; each mistake is reported with its line and the fix."""
