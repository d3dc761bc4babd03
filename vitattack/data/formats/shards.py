"""Numbered tars that hold an image and its label as two files of one name (`s0000041.webp`, `s0000041.cls`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from vitattack.core.errors import UsageError
from vitattack.data.formats.decoding import check_label
from vitattack.data.formats.encoded_images import EncodedImage, files_in_tar, is_image
from vitattack.data.formats.row_sources import ImageSource

LABEL = ".cls"
LONGEST_LABEL = 20  # bytes


class ShardedImages(ImageSource):
    """The images of several tars, tar by tar; `shards` says how many each holds."""

    def __init__(self, paths: Sequence[Path], num_classes: int, transform_text: str) -> None:
        parts = [_labelled_images(path, num_classes) for path in paths]
        self.shards = tuple(map(len, parts))
        super().__init__([pair for part in parts for pair in part], num_classes, transform_text, str(paths[0].parent))


def _labelled_images(path: Path, num_classes: int) -> list[tuple[EncodedImage, int]]:
    files = files_in_tar(path, lambda name: is_image(name) or name.endswith(LABEL))
    labels = {_key(name): file for name, file in files.items() if name.endswith(LABEL)}
    images = {_key(name): file for name, file in sorted(files.items()) if not name.endswith(LABEL)}
    if labels.keys() != images.keys():
        odd = min(labels.keys() ^ images.keys())
        raise UsageError(f"'{path}' holds only one of image and label of {ascii(odd)[:60]}: fetch it again")
    return [
        (image, _label(labels[key].read(), f"{key}{LABEL} of {path}", num_classes)) for key, image in images.items()
    ]


def _key(name: str) -> str:
    return str(PurePosixPath(name).with_suffix(""))


def _label(data: bytes, where: str, num_classes: int) -> int:
    text = data.decode("ascii", "replace").strip() if len(data) <= LONGEST_LABEL else ""
    if not text.isdecimal() or not text.isascii():
        raise UsageError(f"{where} is no class number: fetch it again")
    check_label(int(text), where)
    if int(text) >= num_classes:
        raise UsageError(f"{where} is class {text}, and the set has {num_classes}: is it another data set?")
    return int(text)
