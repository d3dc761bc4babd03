"""AutoAttack: our own composition of its stages, and the reference package in a sandbox."""
