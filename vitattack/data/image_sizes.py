"""Data sets whose images differ in size: in the order of their sizes, since the images of a batch have one size."""

from __future__ import annotations

from dataclasses import replace

from vitattack.data.dataset import DataSet
from vitattack.data.entry import Sized
from vitattack.data.rows import digest_rows


def in_order_of_size(images: DataSet) -> DataSet:
    """The same images, those of one size after each other in their own order; unchanged where all have one size."""
    if not isinstance(images.source, Sized):
        return images
    sizes = dict(zip(images.rows, images.source.sizes(images.rows), strict=True))
    count = len(set(sizes.values()))
    if count < 2:
        return images
    rows = tuple(sorted(images.rows, key=sizes.__getitem__))
    protocol = {**images.protocol, "rows_sha256": digest_rows(rows), "image_sizes": count}
    return replace(images, rows=rows, sizes=sizes, protocol=protocol)


def of_one_size(images: DataSet) -> DataSet:
    """The images of the most frequent size."""
    ordered = in_order_of_size(images)
    return replace(images, rows=ordered.alike(ordered.rows))
