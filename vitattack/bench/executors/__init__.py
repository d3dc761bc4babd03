"""Executors of tasks: this process, several processes, or a Ray cluster; records are the same on each."""
