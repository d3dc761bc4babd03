"""Random images in place of training data: shapes and counts are enough to price a step, so nothing is fetched or read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from vitattack.data import load_data
from vitattack.data.request import DataRequest, as_path, read_request
from vitattack.data.rows import select_rows
from vitattack.text.image_transform import parse_transform
from vitattack.train.data.batch import Stream
from vitattack.train.data.image_stores import ImageStore, Rows
from vitattack.train.data.streams import MixedStream, ShuffledStream
from vitattack.train.data.training_data import check_held_out, check_same_classes, check_share
from vitattack.train.recipe import Recipe

BATCHES = 10  # of a data set whose size is unknown
MANY = 1_000_000  # generated images, where nothing tells how many there are


class StandInData(NamedTuple):
    """A stream that stands in for the data of a recipe, and what had to be assumed since the data is not here."""

    train: Stream
    counted: bool
    assumed: tuple[str, ...]


class RandomImages:
    """Random bytes of one shape as an image store; every row holds a class of its own in turn."""

    def __init__(self, count: int, px: int, num_classes: int) -> None:
        self._count, self._px, self._num_classes = count, px, num_classes

    def __len__(self) -> int:
        return self._count

    def take(self, rows: Rows) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(int(rows[0]) if len(rows) else 0)
        x = torch.randint(0, 256, (len(rows), 3, self._px, self._px), dtype=torch.uint8, generator=generator)
        return x, torch.from_numpy(rows % self._num_classes).long()

    def digest(self) -> str:
        return f"random:{self._count}:{self._px}:{self._num_classes}"


class _Facts(NamedTuple):
    """Facts about a data set that its text or its file tells; None for what neither does."""

    rows: int | None
    num_classes: int | None
    px: int | None


def stand_in_data(recipe: Recipe, input_size: Callable[[], int], data_dir: Path | None = None) -> StandInData:
    """Random images with the counts, classes and shapes of a recipe's data; no data set of the catalogue is opened.

    Files and folders that are named by path are opened where they exist, since nothing else tells how many images
    they hold.
    """
    check_share(recipe)
    real, missing = _facts(recipe.data, data_dir)
    assumed = [] if missing is None else [f"{missing}; the number of its images is unknown"]
    given = recipe.arch_kwargs.get("num_classes")
    classes = real.num_classes or (given if isinstance(given, int) else None)
    if classes is None:
        classes = 1000
        assumed.append(f"'{recipe.data}' does not say how many classes it has: 1000 are assumed")
    px = real.px or input_size()
    if real.rows is None:
        images: ImageStore = RandomImages(BATCHES * recipe.batch_size, px, classes)
    else:
        check_held_out(recipe, real.rows)
        images = RandomImages(real.rows - recipe.validation, px, classes)
    stream: Stream
    if recipe.synthetic is None:
        stream = ShuffledStream(images, num_classes=classes, batch_size=recipe.batch_size, seed=recipe.seed)
    else:
        generated, missing = _facts(recipe.synthetic, data_dir)
        if missing is not None:
            assumed.append(f"{missing}; its images are taken to be like those of '{recipe.data}'")
        check_same_classes(recipe, classes, generated.num_classes)
        more = RandomImages(generated.rows or MANY, generated.px or px, classes)
        stream = MixedStream(
            images, more, recipe.share, num_classes=classes, batch_size=recipe.batch_size, seed=recipe.seed
        )
    return StandInData(stream, real.rows is not None, tuple(assumed))


def _facts(text: str, data_dir: Path | None) -> tuple[_Facts, str | None]:
    """What is known of a data set without fetching it, and what is missing of one that is not here."""
    request = read_request(text)
    entry = request.entry
    if request.transform is not None:
        request.require_transform(request.transform)
    if entry is None:
        if not request.corruption and not as_path(request.name).exists():
            return _Facts(None, None, _side(request)), f"'{request.name}' does not exist"
    elif request.total is not None and not request.part:
        rows, _ = select_rows(request.rows, request.total, text)
        return _Facts(len(rows), entry.num_classes, _side(request)), None
    elif not entry.is_at_hand(data_dir, request.part):
        entry.check_part(request.part)
        return _Facts(None, entry.num_classes, _side(request)), f"'{text}' is not here"
    data = load_data(text, data_dir=data_dir)
    x, _ = data.read(data.rows[:1])
    return _Facts(len(data), data.num_classes, int(x.shape[-1])), None


def _side(request: DataRequest) -> int | None:
    """The side of the images in pixels, where the text or the catalogue tells."""
    if request.transform is not None:
        transform = parse_transform(request.transform)
        return transform.crop or (transform.resize[0] if transform.resize else None)
    return request.entry.px if request.entry is not None else None
