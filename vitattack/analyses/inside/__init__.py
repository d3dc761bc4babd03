"""Inside of a model: lesions, similarity of its layers, restricted attention, and maps of what it looks at."""
