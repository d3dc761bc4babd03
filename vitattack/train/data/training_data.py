"""Training data of a recipe: its stream of batches, and the images held out for probes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.data import load_data
from vitattack.data.dataset import DataSet
from vitattack.data.formats.arrays import ArraySource
from vitattack.train.data.batch import Stream
from vitattack.train.data.image_stores import InMemoryImages, store_images
from vitattack.train.data.streams import MixedStream, ShuffledStream
from vitattack.train.recipe import Recipe


class TrainingData(NamedTuple):
    """The stream to train on, and held-out images and labels for the probes after every epoch."""

    train: Stream
    x: Tensor
    y: Tensor


def open_training_data(recipe: Recipe, data_dir: Path | None = None) -> TrainingData:
    """Open the data sets of a recipe; the held-out rows are drawn with the seed and never trained on."""
    real = load_data(recipe.data, data_dir=data_dir)
    classes = real.num_classes or recipe.arch_kwargs.get("num_classes")
    if not isinstance(classes, int):
        raise UsageError(
            f"'{recipe.data}' does not say how many classes it has: arch_kwargs='{{num_classes: 10}}' does"
        )
    real = _with_classes(real, classes)
    check_held_out(recipe, len(real))
    order = np.random.Generator(np.random.Philox(key=recipe.seed)).permutation(len(real))
    held_out = [real.rows[at] for at in order[: recipe.validation]]
    rest = tuple(real.rows[at] for at in sorted(order[recipe.validation :]))
    x, y = _read(real, held_out)
    settings = {"num_classes": classes, "batch_size": recipe.batch_size, "seed": recipe.seed}
    real_images = store_images(real, rest)
    check_share(recipe)
    if recipe.synthetic is None:
        return TrainingData(ShuffledStream(real_images, **settings), x, y)
    try:
        generated = load_data(recipe.synthetic, data_dir=data_dir)
    except UsageError as error:
        raise UsageError(f"generated images: {error}; or go without them: synthetic=null share=0") from error
    check_same_classes(recipe, classes, generated.num_classes)
    rows = _rows_without(generated, real, held_out)
    generated_images = store_images(_with_classes(generated, classes), rows)
    return TrainingData(MixedStream(real_images, generated_images, recipe.share, **settings), x, y)


def check_held_out(recipe: Recipe, count: int) -> None:
    """Refuse to hold out all of `count` images."""
    if recipe.validation >= count:
        raise UsageError(f"'{recipe.data}' has {count} images, {recipe.validation} of them held out: lower validation")


def check_share(recipe: Recipe) -> None:
    """Refuse generated images without a share of the batch, and a share without generated images."""
    if (recipe.synthetic is None) != (recipe.share == 0):
        raise UsageError(
            "synthetic names generated images and share how many of a batch they are: give both or neither"
        )


def check_same_classes(recipe: Recipe, classes: int, generated: int | None) -> None:
    """Refuse generated images of another number of classes, where it is known."""
    if generated not in (None, classes):
        raise UsageError(f"'{recipe.data}' has {classes} classes, '{recipe.synthetic}' {generated}: use one kind")


def _with_classes(data: DataSet, count: int) -> DataSet:
    """Check the labels of files that do not state their number of classes against the number known from elsewhere."""
    if isinstance(data.source, ArraySource) and data.source.num_classes is None:
        return replace(data, source=data.source.of_classes(count))
    return data


def _rows_without(generated: DataSet, real: DataSet, held_out: Sequence[int]) -> tuple[int, ...]:
    """Rows of the generated data, less the held-out ones where both texts name the same files."""
    alike = type(generated.source) is type(real.source) and len(generated.source) == len(real.source)
    if not held_out or not alike or generated.source.digest(held_out[:1]) != real.source.digest(held_out[:1]):
        return generated.rows
    excluded = set(held_out)
    return tuple(row for row in generated.rows if row not in excluded)


def _read(data: DataSet, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Images and labels of some rows, possibly none."""
    if not rows:
        x, y = data.read(data.rows[:1])
        return x[:0], y[:0]
    return InMemoryImages.read(data.source, rows).take(np.arange(len(rows)))
