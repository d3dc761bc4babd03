"""ImageNet validation in any layout, and the classes made of its classes."""
