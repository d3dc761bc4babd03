"""Losses that attacks maximise: one value per sample, higher means better for the attacker."""
