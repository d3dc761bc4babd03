"""Official folder layouts of image sets other than ImageNet validation, each checked as it is opened."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from vitattack.core.errors import UsageError
from vitattack.data.formats.encoded_images import EncodedImage, images_in, images_in_folder
from vitattack.data.formats.matfile import read_numbers
from vitattack.data.formats.row_sources import ImageSource
from vitattack.data.labels.imagenet import CATEGORIES, synset_numbers
from vitattack.data.labels.other_sets import CALTECH101


def synset_folders(
    path: Path, transform_text: str, allowed: Sequence[int] | None, *, number_within: bool
) -> ImageSource:
    """Synset folders, or a tar of them, whose synsets are among the allowed; `number_within` numbers labels within those."""
    position = {label: k for k, label in enumerate(allowed)} if allowed is not None else None
    items: list[tuple[EncodedImage, int]] = []
    for blob in images_in(path):
        synset = PurePosixPath(blob.name).parent.name
        label = synset_numbers().get(synset)
        if label is None or (position is not None and label not in position):
            kind = "no class of this set" if label is not None else "no ImageNet-1k synset"
            raise UsageError(
                f"'{path}' holds {ascii(blob.name)[1:60]}, and '{synset[:20]}' is {kind}: is it another data set?"
            )
        items.append((blob, position[label] if position is not None and number_within else label))
    classes = len(allowed) if allowed is not None and number_within else len(synset_numbers())
    return ImageSource(items, classes, transform_text, str(path))


def numbered_folders(path: Path, transform_text: str) -> ImageSource:
    """ImageNet-V2: folders named 0 to 999, sorted as numbers rather than as text."""
    items: list[tuple[EncodedImage, int]] = []
    for blob in images_in(path):
        name = PurePosixPath(blob.name).parent.name
        if not re.fullmatch(r"\d{1,3}", name, re.ASCII):
            raise UsageError(f"'{path}' holds {ascii(blob.name)[1:60]}: its class folders are named 0 to 999")
        items.append((blob, int(name)))
    items.sort(key=lambda item: (item[1], item[0].name))
    return ImageSource(items, 1000, transform_text, str(path))


def caltech101(path: Path, transform_text: str) -> ImageSource:
    """101_ObjectCategories: 101 folders and the background, numbered by their names in lower case."""
    order = {name: number for number, name in enumerate(CALTECH101)}
    items: list[tuple[EncodedImage, int]] = []
    for blob in images_in(path):
        name = PurePosixPath(blob.name).parent.name
        if name.lower() not in order:
            raise UsageError(f"'{path}' holds '{name[:40]}', which is no class of Caltech-101: is it another data set?")
        items.append((blob, order[name.lower()]))
    return ImageSource(items, len(CALTECH101), transform_text, str(path))


def flowers102(path: Path, transform_text: str, split: str) -> ImageSource:
    """jpg/image_00001.jpg with imagelabels.mat and setid.mat; `split` is one of the three lists of the latter."""
    labels, chosen = _mat_numbers(path / "imagelabels.mat", "labels"), _mat_numbers(path / "setid.mat", split)
    blobs = {blob.name: blob for blob in images_in_folder(path / "jpg")}
    items: list[tuple[EncodedImage, int]] = []
    for number in sorted(chosen):
        name = f"image_{number:05d}.jpg"
        if name not in blobs or not 1 <= number <= len(labels):
            raise UsageError(f"'{path}' lacks {name}, which setid.mat names: unpack 102flowers.tgz again")
        items.append((blobs[name], labels[number - 1] - 1))
    if any(not 0 <= label < 102 for _, label in items):
        raise UsageError(f"'{path}/imagelabels.mat' has labels beyond 1 to 102: fetch it again")
    return ImageSource(items, 102, transform_text, str(path))


def _mat_numbers(path: Path, name: str) -> list[int]:
    try:
        if path.stat().st_size > 100_000:
            raise ValueError("too long")
        return read_numbers(path.read_bytes(), name)
    except (OSError, ValueError, zlib.error) as error:
        reason = "does not exist" if isinstance(error, FileNotFoundError) else f"holds no list '{name}'"
        raise UsageError(f"'{path}' {reason}: put the official file there") from error


class CueConflict(ImageSource):
    """<shape>/<shape><i>-<texture><j>.png: labels are the categories of the shapes, `textures` has those of the textures."""

    def __init__(self, path: Path, transform_text: str) -> None:
        names = list(CATEGORIES)
        items: list[tuple[EncodedImage, int]] = []
        self.textures: list[int] = []
        for blob in images_in(path):
            match = re.fullmatch(r"([a-z]+)\d+-([a-z]+)\d+", PurePosixPath(blob.name).stem)
            folder = PurePosixPath(blob.name).parent.name
            if match is None or match[1] not in CATEGORIES or match[2] not in CATEGORIES or folder != match[1]:
                raise UsageError(
                    f"'{path}' holds {ascii(blob.name)[1:60]}, not SHAPE/SHAPE1-TEXTURE1.png: is it another set?"
                )
            items.append((blob, names.index(match[1])))
            self.textures.append(names.index(match[2]))
        super().__init__(items, len(names), transform_text, str(path))
