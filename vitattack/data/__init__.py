"""Images in [0,1] with their labels, by name: `load("cifar10[:1000]")`."""

from vitattack.data.classes import asked
from vitattack.data.dataset import DataSet, from_tensors, load, takes_transform

__all__ = ["DataSet", "asked", "from_tensors", "load", "takes_transform"]
