"""Faults injected into the command line: kills, damaged files, broken folders, absent locks, jumping clocks."""
