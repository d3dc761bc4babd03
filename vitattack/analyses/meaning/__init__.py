"""What perturbations mean: images of them, and images made of noise, before other models."""
