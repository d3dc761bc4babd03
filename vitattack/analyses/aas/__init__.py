"""Figures of the paper on adaptive attention scaling (Jain and Dutta 2024)."""
