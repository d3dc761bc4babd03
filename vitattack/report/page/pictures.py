"""Saved adversarial examples as pictures for eyes: original, amplified change and candidate side by side in one strip."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from vitattack.core.errors import VitattackError
from vitattack.records.saved_examples import Example, SavedExamples
from vitattack.report.overview.run import ShownRun
from vitattack.report.overview.samples import Column

LARGEST = 4_500_000  # bytes of all pictures of a page, in base64
LOSSLESS = 64  # pixels; beyond, pictures are compressed as photographs are
SIDE = 192  # of a picture at most: larger images are halved until they fit


class Strip(NamedTuple):
    """A picture as a data address, and by how much its middle part amplifies the change."""

    source: str
    amplified: float


def strips(runs: tuple[ShownRun, ...], most: int) -> dict[str, dict[int, Strip]]:
    """Pictures by key of the run and index of the image: up to `most` a run, of as many kinds as there are."""
    found: dict[str, dict[int, Strip]] = {}
    kept = [(run, examples) for run in runs if most and len(examples := SavedExamples(run.folder))]
    for run, examples in kept:
        room = LARGEST // len(kept)
        pictures: dict[int, Strip] = {}
        for index in _varied(run, examples):
            if len(pictures) == most:
                break
            try:
                strip = _strip(examples[index])
            except VitattackError:  # a damaged file: the records count, and a page can do without a picture
                continue
            room -= len(strip.source)
            if room < 0:
                break
            pictures[index] = strip
        if pictures:
            found[run.job.key] = pictures
    return found


def _varied(run: ShownRun, examples: SavedExamples) -> Iterator[int]:
    """The attacked samples with an example: of every outcome, stage and class in turn, fooled ones first."""
    samples = run.samples
    groups: dict[tuple[Any, ...], list[int]] = {}
    for at in np.flatnonzero(samples.attacked):
        if int(samples.index[at]) in examples:
            kind = (not samples.fooled[at], int(samples.stage[at]), int(samples.label[at]))
            groups.setdefault(kind, []).append(int(samples.index[at]))
    for of_one_turn in zip_longest(*(groups[kind] for kind in sorted(groups))):
        yield from (index for index in of_one_turn if index is not None)


def _strip(example: Example) -> Strip:
    from PIL import Image

    clean, candidate = (np.clip(np.nan_to_num(image), 0, 1) for image in (example.x, example.x_adv))
    change = candidate - clean
    largest = float(np.abs(change).max())
    amplified = 0.4 / largest if largest else 1.0
    strip = np.concatenate([_fit(image) for image in (clean, 0.5 + change * amplified, candidate)], axis=2)
    pixels = np.rint(strip.clip(0, 1) * 255).astype(np.uint8).transpose(1, 2, 0)
    stream = io.BytesIO()
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    if max(example.x.shape[1:]) <= LOSSLESS:
        picture.save(stream, "PNG", optimize=True)
    else:
        picture.save(stream, "WEBP", quality=85)
    kind = "png" if stream.getvalue().startswith(b"\x89PNG") else "webp"
    return Strip(f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}", amplified)


def _fit(image: Column) -> Column:
    """An image halved until its sides are at most `SIDE`."""
    while max(image.shape[1:]) > SIDE:
        height, width = (2 * (side // 2) for side in image.shape[1:])
        even = image[:, :height, :width]
        image = even.reshape(len(image), height // 2, 2, width // 2, 2).mean((2, 4))
    return image
