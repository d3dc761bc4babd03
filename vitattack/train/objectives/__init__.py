"""Training objectives: the images to train on and the loss to minimise."""
