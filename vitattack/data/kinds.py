"""The kinds of data sets: what each says of itself, where its files may lie, how it is opened."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from vitattack.core.assets import EMBEDDED
from vitattack.core.errors import UsageError
from vitattack.core.files import offline_variable
from vitattack.core.registry import did_you_mean
from vitattack.data.formats import arrays
from vitattack.data.formats.row_sources import ParquetSource, Source
from vitattack.data.imagenet import validation as imagenet
from vitattack.data.imagenet.classes import Classes
from vitattack.data.labels.imagenet import validation_labels
from vitattack.models.weights import hub


@dataclass(frozen=True)
class Opened:
    """A source with what the data set says about it."""

    source: Source
    classes: Classes | None = None
    rows: tuple[int, ...] | None = None  # where the set is a part of its source


class Entry(Protocol):
    """What every data set says of itself."""

    @property
    def summary(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def num_classes(self) -> int: ...
    @property
    def takes_transform(self) -> bool: ...
    @property
    def transform(self) -> str | None: ...
    @property
    def default(self) -> str: ...
    @property
    def origin(self) -> str: ...
    def open(self, data_dir: Path | None, part: str = "", transform: str = "none") -> Opened: ...
    def where(self, data_dir: Path | None) -> str: ...
    def here(self, data_dir: Path | None, part: str = "") -> bool: ...


def _no_part(part: str, summary: str) -> None:
    if part:
        raise UsageError(f"'{part[:40]}' is no part of '{summary}': write the name alone")


def fetch(repo: str, file: str) -> Path:
    """A file of a data set on the hub, from its cache or the network."""
    from huggingface_hub import hf_hub_download

    forbidden = offline_variable()
    lost = None if forbidden else hub.unreachable()
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it tells of every retry; the one line below says it all
    try:
        return Path(hf_hub_download(repo, file, repo_type="dataset", local_files_only=bool(forbidden or lost)))
    except Exception as error:  # the hub client and its transport each raise their own kinds
        reason = f"{forbidden} is set" if forbidden else f"{lost} cannot be reached" if lost else type(error).__name__
        raise UsageError(
            f"cannot fetch {repo} from the hub ({reason}) and it is not cached: "
            "connect and run again, or give --data-dir a folder that holds it"
        ) from error
    finally:
        logger.setLevel(level)


def local(data_dir: Path, repo: str, file: str) -> Path | None:
    """The same file in a folder with the hub's layout, or with the layout of the repository alone."""
    return next((path for path in (data_dir / repo / file, data_dir / file) if path.is_file()), None)


def cached(repo: str, files: Sequence[str]) -> bool:
    """Whether the hub's cache holds all of these files."""
    from huggingface_hub import try_to_load_from_cache

    return all(isinstance(try_to_load_from_cache(repo, file, repo_type="dataset"), str) for file in files)


@dataclass(frozen=True)
class HubSet:
    """One split of a small image data set on the Hugging Face hub, or the same files in a local folder."""

    summary: str
    repo: str
    file: str
    label: str
    num_classes: int
    rows: int
    image: str = "img"
    takes_transform = False
    transform = None
    default = ""

    def open(self, data_dir: Path | None, part: str = "", transform: str = "none") -> Opened:
        _no_part(part, self.summary)
        return Opened(ParquetSource([_hub(data_dir, self.repo, self.file)], self.image, self.label, self.num_classes))

    def where(self, data_dir: Path | None) -> str:
        path = local(data_dir, self.repo, self.file) if data_dir else None
        return str(path) if path else f"hub: {self.repo}"

    def here(self, data_dir: Path | None, part: str = "") -> bool:
        if data_dir is None:
            return cached(self.repo, [self.file])
        return local(data_dir, self.repo, self.file) is not None

    @property
    def origin(self) -> str:
        return f"huggingface.co/datasets/{self.repo}"

    def fetch(self) -> Path:
        return fetch(self.repo, self.file)


def _hub(data_dir: Path | None, repo: str, file: str) -> Path:
    if data_dir is None:
        return fetch(repo, file)
    path = local(data_dir, repo, file)
    if path is None:
        raise UsageError(f"no {repo}/{file} in '{data_dir}': give --data-dir a folder with the hub's layout")
    return path


@dataclass(frozen=True)
class HubArrays:
    """Generated images on the hub as one or more npz files, each mapped and none joined."""

    summary: str
    repo: str
    files: tuple[str, ...]
    num_classes: int
    rows: int
    takes_transform = False
    transform = None
    default = ""

    def open(self, data_dir: Path | None, part: str = "", transform: str = "none") -> Opened:
        _no_part(part, self.summary)
        paths = [_hub(data_dir, self.repo, file) for file in self.files]
        source = arrays.npz_parts(paths, self.num_classes)
        check_count(len(source), self.rows, str(paths[0].parent))
        return Opened(source)

    def where(self, data_dir: Path | None) -> str:
        return str(data_dir) if data_dir and self.here(data_dir) else f"hub: {self.repo}"

    @property
    def origin(self) -> str:
        return f"huggingface.co/datasets/{self.repo}"

    def here(self, data_dir: Path | None, part: str = "") -> bool:
        if data_dir is None:
            return cached(self.repo, self.files)
        return all(local(data_dir, self.repo, file) for file in self.files)


@dataclass(frozen=True)
class EmbeddedSet:
    """Images that ship with the package."""

    summary: str
    file: str
    num_classes: int
    rows: int
    takes_transform = False
    transform = None
    default = ""
    origin = "shipped with vitattack"

    def open(self, data_dir: Path | None, part: str = "", transform: str = "none") -> Opened:
        _no_part(part, self.summary)
        return Opened(ParquetSource([EMBEDDED / self.file], "img", "label", self.num_classes))

    def where(self, data_dir: Path | None) -> str:
        return "embedded"

    def here(self, data_dir: Path | None, part: str = "") -> bool:
        return True


def check_count(found: int, wanted: int, where: str) -> None:
    if found != wanted:
        raise UsageError(
            f"'{where}' holds {found:,} images, the set has {wanted:,}: complete it, or use folder: for a part"
        )


@dataclass(frozen=True)
class LocalSet:
    """A data set in its official layout below --data-dir, at the first of some places."""

    summary: str
    places: tuple[str, ...]
    origin: str
    num_classes: int
    rows: int
    opener: Callable[[Path, str, str], Opened] = field(repr=False)
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # what may follow the name, and its own places
    default: str = ""
    severities: bool = False  # whether /1 to /5 follow the part
    takes_transform: bool = True
    transform: str | None = None

    def open(self, data_dir: Path | None, part: str = "", transform: str = "none") -> Opened:
        part = part or self.default
        head = part.split("/")[0]
        if self.parts and head not in self.parts:
            asked = did_you_mean("part", head, self.parts) if head else f"name a part: {', '.join([*self.parts][:20])}"
            raise UsageError(f"{self.summary}: {asked}")
        if not self.parts or ("/" in part and not self.severities):
            _no_part(part, self.summary)
        path = self._find(data_dir, head)
        if path is None:
            shown = " or ".join(self.parts.get(head) or self.places[:2])
            lacking = f"'{data_dir}' has no" if data_dir else "no --data-dir is given that has a"
            raise UsageError(
                f"{self.summary}: {lacking} {shown}: get it from {self.origin}, and name the folder it is in"
            )
        return self.opener(path, part, transform)

    def _find(self, data_dir: Path | None, head: str) -> Path | None:
        if data_dir is None:
            return None
        places = [data_dir / place for place in self.places]
        inner = self.parts.get(head)
        if inner:
            places = [place / name for place in [*places, data_dir] for name in inner]
        return next((place for place in places if place.exists()), None)

    def where(self, data_dir: Path | None) -> str:
        heads = [self.default] if self.default or not self.parts else list(self.parts)
        path = next((path for head in heads if (path := self._find(data_dir, head))), None)
        return str(path) if path else "to be fetched"

    def here(self, data_dir: Path | None, part: str = "") -> bool:
        head = (part or self.default).partition("/")[0]
        return bool(head or not self.parts) and self._find(data_dir, head) is not None


@dataclass(frozen=True)
class ValidationSet:
    """ImageNet validation, or the part of it in some classes: a folder, the official tar, or the hub's parquet files."""

    summary: str
    classes: Classes | None = None
    takes_transform = True
    transform = None
    default = ""
    repo = "ILSVRC/imagenet-1k"
    files = tuple(f"data/validation-{number:05d}-of-00014.parquet" for number in range(14))
    places = (
        "ILSVRC2012_img_val.tar",
        "imagenet/val",
        "ImageNet/val",
        "ILSVRC/Data/CLS-LOC/val",
        "ILSVRC2012_img_val",
        "val",
    )

    @property
    def origin(self) -> str:
        return f"image-net.org (ILSVRC2012_img_val.tar), or huggingface.co/datasets/{self.repo} once its terms are accepted"

    @property
    def num_classes(self) -> int:
        return len(self.classes) if self.classes else 1000

    @property
    def rows(self) -> int:
        return 50 * self.num_classes

    def open(self, data_dir: Path | None, part: str = "", transform: str = "none") -> Opened:
        _no_part(part, self.summary)
        path = self._find(data_dir)
        source = (
            imagenet.from_place(path, transform, self.classes)
            if path
            else imagenet.from_parquet(self._parquet(data_dir), transform, self.classes)
        )
        if self.classes is None:
            return Opened(source)
        wanted = {member[0] for member in self.classes.members}
        return Opened(source, self.classes, tuple(r for r, label in enumerate(validation_labels()) if label in wanted))

    def _find(self, data_dir: Path | None) -> Path | None:
        return (
            next((data_dir / place for place in self.places if (data_dir / place).exists()), None) if data_dir else None
        )

    def _parquet(self, data_dir: Path | None) -> list[Path]:
        if data_dir is None:
            return [fetch(self.repo, file) for file in self.files]
        found = [local(data_dir, self.repo, file) for file in self.files]
        paths = [path for path in found if path is not None]
        if not paths:
            raise UsageError(
                f"'{data_dir}' has no ImageNet validation set: put ILSVRC2012_img_val.tar there, "
                "a folder val of synset folders, or the hub's ILSVRC/imagenet-1k/data/validation-*.parquet"
            )
        return paths

    def where(self, data_dir: Path | None) -> str:
        path = self._find(data_dir)
        if path is None and data_dir and local(data_dir, self.repo, self.files[0]):
            return str(data_dir)
        return str(path) if path else f"hub: {self.repo}"

    def here(self, data_dir: Path | None, part: str = "") -> bool:
        if data_dir is None:
            return cached(self.repo, self.files)
        return self._find(data_dir) is not None or local(data_dir, self.repo, self.files[0]) is not None
