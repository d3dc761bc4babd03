"""Images in [0,1] with their labels, by name: `load("cifar10[:1000]")`."""

from vitattack.data.dataset import DataSet, from_tensors, load

__all__ = ["DataSet", "from_tensors", "load"]
