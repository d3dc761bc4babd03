"""Execution of benchmarks: stored cells are looked up, missing ones become tasks for an executor."""
