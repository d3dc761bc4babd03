"""Images and labels handed over from Python: arrays, tensors, a torch data set or a data loader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from vitattack.core.errors import UsageError
from vitattack.data.dataset import DataSet, from_images, from_tensors

Join = Callable[[list[Tensor]], Tensor]
GIVE = "give a name, a pair of images and labels, or a data set or loader of such pairs"


def from_python(given: Any, limit: int | None = None) -> DataSet:
    """A data set of what a caller has; of a torch data set or loader, the first `limit` images are read into memory."""
    if isinstance(given, DataLoader):
        return _joined(_pairs(given), limit, torch.cat)
    if isinstance(given, IterableDataset):
        return _joined(_pairs(given), limit, torch.stack)
    if isinstance(given, Dataset):
        return _joined(_pairs(_items(given)), limit, torch.stack)
    if isinstance(given, tuple | list) and len(given) == 2:
        return from_tensors(*as_tensors(*given))
    raise UsageError(f"data is {type(given).__name__}: {GIVE}")


def as_tensors(x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Images and labels as tensors that autograd knows nothing of."""
    return _tensor(x, "images"), _tensor(y, "labels")


def _tensor(value: Any, what: str) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().clone() if value.is_inference() else value.detach()
    try:
        array = np.asarray(value)
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{what} are {type(value).__name__}, which makes no tensor: let a transform such as ToTensor() convert them"
        ) from error


def _items(data: Dataset[Any]) -> Iterator[Any]:
    count = len(data)  # type: ignore[arg-type]
    return (data[number] for number in range(count))


def _pairs(items: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    for item in items:
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise UsageError(f"the data gives {type(item).__name__} and no pair of images and labels: {GIVE}")
        yield as_tensors(*item)


def _joined(pairs: Iterator[tuple[Tensor, Tensor]], limit: int | None, join: Join) -> DataSet:
    """All images and labels, or those of enough pairs for the limit."""
    images: list[Tensor] = []
    labels: list[Tensor] = []
    rows = 0
    for x, y in islice(pairs, limit):
        images.append(x)
        labels.append(y)
        rows += len(y) if y.dim() else 1
        if limit is not None and rows >= limit:
            break
    if not images:
        raise UsageError("there are no images: give at least one")
    try:
        if len({image.shape[-2:] for image in images}) > 1:
            singles = [single for image in images for single in (image if join is torch.cat else [image])]
            return from_images(singles, join(labels))
        return from_tensors(join(images), join(labels))
    except RuntimeError as error:
        raise UsageError("the images or labels differ in shape: let a transform make them alike") from error
