"""The zoo: named checkpoints, and the loading of a victim by name."""
