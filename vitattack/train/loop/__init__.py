"""The training loop and its surroundings: model, session, checkpoints, logs, probes, processes."""
