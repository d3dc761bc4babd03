"""Diagnosis of attention softmaxes and of what precision does to input gradients."""
