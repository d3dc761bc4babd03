"""Readers of texts: attack syntax, argument binding, image transforms, and YAML with line numbers."""
