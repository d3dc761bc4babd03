"""Other images than those of training: corruptions, variants of ImageNet, shape against texture."""
