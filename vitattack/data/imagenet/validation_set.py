"""The catalogue entry of ImageNet validation: a folder, the official tar, or the hub's parquet files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitattack.core.errors import UsageError
from vitattack.data.entry import EntryDefaults, OpenedSet
from vitattack.data.hub_sets import cached_paths, fetch_from_hub, find_in_folder, is_cached
from vitattack.data.imagenet.classes import Classes
from vitattack.data.labels.imagenet import validation_labels

REPO = "ILSVRC/imagenet-1k"
FILES = tuple(f"data/validation-{number:05d}-of-00014.parquet" for number in range(14))
PLACES = (
    "ILSVRC2012_img_val.tar",
    "imagenet/val",
    "ImageNet/val",
    "ILSVRC/Data/CLS-LOC/val",
    "ILSVRC2012_img_val",
    "val",
)


@dataclass(frozen=True)
class ValidationSet(EntryDefaults):
    """ImageNet validation, or the part of it in some classes."""

    summary: str
    classes: Classes | None = None
    takes_transform = True
    of_imagenet = True

    @property
    def origin(self) -> str:
        return f"image-net.org (ILSVRC2012_img_val.tar), or huggingface.co/datasets/{REPO} once its terms are accepted"

    @property
    def num_classes(self) -> int:
        return len(self.classes) if self.classes else 1000

    @property
    def rows(self) -> int:
        return 50 * self.num_classes

    def check_files(self, data_dir: Path | None, part: str = "") -> None:
        if data_dir is not None and _images_in(data_dir) is None and not _parquet_in(data_dir):
            raise UsageError(
                f"'{data_dir}' has no ImageNet validation set: put ILSVRC2012_img_val.tar there, "
                "a folder val of synset folders, or the hub's ILSVRC/imagenet-1k/data/validation-*.parquet"
            )

    def open(self, data_dir: Path | None, part: str = "", transform: str = "none") -> OpenedSet:
        from vitattack.data.imagenet.validation import open_validation_images, open_validation_parquet

        self.check_files(data_dir)
        path = _images_in(data_dir) if data_dir else None
        if path is not None:
            source = open_validation_images(path, transform, self.classes)
        else:
            files = _parquet_in(data_dir) if data_dir else [fetch_from_hub(REPO, file) for file in FILES]
            source = open_validation_parquet(files, transform, self.classes)
        if self.classes is None:
            return OpenedSet(source)
        wanted = {member[0] for member in self.classes.members}
        rows = tuple(row for row, label in enumerate(validation_labels()) if label in wanted)
        return OpenedSet(source, self.classes, rows)

    def location(self, data_dir: Path | None) -> str:
        path = _images_in(data_dir) if data_dir else None
        if path is None and data_dir and find_in_folder(data_dir, REPO, FILES[0]):
            return str(data_dir)
        return str(path) if path else f"hub: {REPO}"

    def is_at_hand(self, data_dir: Path | None, part: str = "") -> bool:
        if data_dir is None:
            return is_cached(REPO, FILES)
        return _images_in(data_dir) is not None or find_in_folder(data_dir, REPO, FILES[0]) is not None

    def content_paths(self, data_dir: Path | None, part: str = "") -> Sequence[Path] | None:
        if data_dir is None:
            return cached_paths(REPO, FILES)
        images = _images_in(data_dir)
        return _parquet_in(data_dir) or None if images is None else [images]


def _images_in(data_dir: Path) -> Path | None:
    """The folder or tar with the images."""
    return next((data_dir / place for place in PLACES if (data_dir / place).exists()), None)


def _parquet_in(data_dir: Path) -> list[Path]:
    paths = [find_in_folder(data_dir, REPO, file) for file in FILES]
    return [path for path in paths if path is not None]
