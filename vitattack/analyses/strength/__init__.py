"""Strength of attacks: budgets, steps, restarts, and single steps against an oracle."""
