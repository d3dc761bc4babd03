"""Threat models: the images an attacker may show, by text and registry."""
