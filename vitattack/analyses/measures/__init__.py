"""Measures of the analyses as functions of tensors and numbers: no models, no files."""
