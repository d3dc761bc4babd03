"""Many models at once, from stored runs and published numbers: no model is opened, and torch is not imported."""
