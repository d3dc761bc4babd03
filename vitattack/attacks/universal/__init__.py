"""One change for all images, made once from other images."""
