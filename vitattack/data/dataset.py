"""A data set by its text, such as `cifar10[random:500:1]`: which rows, in which order, with which digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.data.catalogue import CATALOGUE
from vitattack.data.formats.arrays import npz_source
from vitattack.data.formats.row_sources import Source, TensorSource, class_folders
from vitattack.data.imagenet.classes import Classes, subset
from vitattack.data.imagenet.validation import ValidationSource
from vitattack.data.kinds import Entry, Opened, ValidationSet
from vitattack.data.labels.imagenet import classes_from_synsets
from vitattack.data.protocols import PROTOCOLS
from vitattack.data.rows import digest_of, select, split
from vitattack.data.transform import Preprocessing
from vitattack.text.image_transform import parse_transform

CLASS_FILE = "imagenet-classes"


@dataclass(frozen=True)
class DataSet:
    """Rows of a source. `text` names them; records keep the row numbers of the source."""

    text: str
    source: Source
    rows: tuple[int, ...]
    classes: Classes | None = None
    protocol: Mapping[str, Any] = field(default_factory=dict)  # what was evaluated, for the result
    pool: Sequence[int] | None = None  # the rows there are, where not all of the source

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def num_classes(self) -> int | None:
        return self.source.num_classes

    @property
    def set_name(self) -> str:
        """The set without rows and transform: equal names number the same images equally."""
        return str(self.protocol.get("data") or self.text.partition("[")[0])

    def digest(self) -> str:
        return self.source.digest(self.rows)

    def read(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        return self.source.read(rows)

    def spare(self, count: int) -> tuple[int, ...]:
        """The first rows that are there and not among those of the set."""
        used = set(self.rows)
        rows = self.pool if self.pool is not None else range(len(self.source))
        return tuple(row for row in rows if row not in used)[:count]

    def cut(self, batch_size: int) -> Iterator[tuple[int, ...]]:
        """The rows of each batch: always cut from the first row on, so that shards and resumed runs see equal batches."""
        for at in range(0, len(self.rows), batch_size):
            yield self.rows[at : at + batch_size]


def load(
    text: str,
    *,
    limit: int | None = None,
    data_dir: Path | None = None,
    transform: str | None = None,
    model_transform: str = "none",
    px: int | None = None,
) -> DataSet:
    """`cifar10[:1000]`, `cifar10[random:500:1]`, `cifar10-c/fog/3`, `robustbench-imagenet-5k`, `folder:PATH`, `npz:PATH`.

    `transform` is asked for; `model_transform` and `px` are what the model was made with, used where nobody asks.
    """
    if data_dir is not None and not data_dir.is_dir():
        raise UsageError(f"data folder '{data_dir}' does not exist: give --data-dir a folder with the hub's layout")
    name, asked = split(text)
    if limit is not None:
        if asked is not None:
            raise UsageError(f"data '{text}' is narrowed twice: give one of [...] and a limit")
        asked = f":{limit}"
    wish = Preprocessing(transform, model_transform, px)
    parse_transform(transform or "none")  # a mistake in it is worth a word whatever the data
    found = _resolve(name, data_dir, wish)
    base = found.opened.rows if found.opened.rows is not None else range(len(found.opened.source))
    at, selection = select(asked, len(base), text)
    rows = tuple(base[position] for position in at)
    source, pool = found.opened.source, None
    if isinstance(source, ValidationSource):
        source.need(rows)
        pool = sorted(set(source.present) & set(base))
    full = f"{found.text}[{selection}]" if selection else found.text
    return DataSet(full, source, rows, found.opened.classes, found.record(rows, len(base), selection), pool)


def from_tensors(x: Tensor, y: Tensor) -> DataSet:
    source = TensorSource(x, y)
    text = f"tensors:{source.digest(range(len(x)))[:16]}"
    return DataSet(text, source, tuple(range(len(x))), protocol={"name": None, "data": text, "n": len(x)})


def takes_transform(text: str) -> bool:
    """Whether the pixels of a data set depend on a transform: encoded images of any size do, arrays do not."""
    name = split(text)[0].partition("@")[0]
    head = name.partition("/")[0]
    if head in CATALOGUE:
        return CATALOGUE[head].takes_transform
    return name in PROTOCOLS or name.partition(":")[0] in ("folder", CLASS_FILE)


@dataclass(frozen=True)
class _Resolved:
    """A name opened, before rows are chosen."""

    text: str
    data: str
    opened: Opened
    transform: str
    decided: str
    protocol: str | None = None
    usual: str | None = None  # the transform of the protocol for this model

    def record(self, rows: tuple[int, ...], total: int, selection: str) -> dict[str, Any]:
        classes = self.opened.classes
        content: dict[str, Any] = {
            "name": self.protocol,
            "data": self.data,
            "selection": selection or "all",
            "n": len(rows),
            "rows_sha256": digest_of(rows),
            "transform": self.transform,
            "transform_from": self.decided,
            "classes": classes.name if classes else None,
            "classes_sha256": classes.sha256 if classes else None,
        }
        if self.protocol is None:
            return content
        known = PROTOCOLS[self.protocol]
        deviations = [] if known.published_ids else ["the images are a draw: those of the paper are not public"]
        if len(rows) < total:
            deviations.append(f"{len(rows)} of {total} images")
        if self.transform != self.usual:
            deviations.append(f"transform {self.transform} was asked for")
        return {**content, **known.record(), "deviations": deviations}


def _resolve(name: str, data_dir: Path | None, wish: Preprocessing) -> _Resolved:
    kind, colon, path = name.partition(":")
    if colon and kind == "folder":
        return _folder(path, wish)
    if colon and kind == "npz":
        return _Resolved(name, name, Opened(npz_source(_path(path))), "none", "data")
    if colon and kind == CLASS_FILE:
        return _user_classes(path, data_dir, wish)
    plain, at, written = name.partition("@")
    head, _, part = plain.partition("/")
    if plain in PROTOCOLS:
        protocol = PROTOCOLS[plain]
        entry, own = CATALOGUE[protocol.data], protocol.transform
        how, decided = _settle(wish, written if at else None, own)
        opened = entry.open(data_dir, "", how)
        opened = Opened(opened.source, opened.classes, protocol.rows)
        return _Resolved(f"{plain}@{how}", protocol.data, opened, how, decided, plain, _usual(wish, own))
    if head not in CATALOGUE:
        known = [*CATALOGUE, *PROTOCOLS, "folder:PATH", "npz:PATH", f"{CLASS_FILE}:FILE"]
        raise UsageError(did_you_mean("data set", plain, known))
    entry = CATALOGUE[head]
    canonical = f"{head}/{part}" if part and part != entry.default else head
    if not entry.takes_transform:
        if at:
            raise UsageError(f"'{head}' is used as it is: drop the transform @{written[:40]}")
        return _Resolved(canonical, canonical, entry.open(data_dir, part), "none", "data")
    how, decided = _settle(wish, written if at else None, entry.transform)
    return _Resolved(f"{canonical}@{how}", canonical, entry.open(data_dir, part, how), how, decided)


def _settle(wish: Preprocessing, written: str | None, own: str | None) -> tuple[str, str]:
    how, decided = wish.settle(written, own)
    parse_transform(how)
    return how, decided


def _usual(wish: Preprocessing, own: str | None) -> str | None:
    """What would be done if nobody asked for a transform, where that is known."""
    if own is not None and "{px}" in own and wish.px is None:
        return None
    return replace(wish, given=None).settle(None, own)[0]


def _folder(path: str, wish: Preprocessing) -> _Resolved:
    written = None
    if not _path(path).exists() and "@" in path:  # the canonical text of a set, read back
        path, _, written = path.rpartition("@")
    how, decided = _settle(wish, written, None)
    return _Resolved(f"folder:{path}@{how}", f"folder:{path}", Opened(class_folders(_path(path), how)), how, decided)


def _user_classes(path: str, data_dir: Path | None, wish: Preprocessing) -> _Resolved:
    file = _path(path)
    try:
        content = file.read_bytes()[:100_000].decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(f"cannot read classes from '{path}' ({reason}): give a text file of synsets") from error
    numbers = classes_from_synsets(content, f"'{path}'")
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    entry: Entry = ValidationSet(f"the {len(numbers)} classes of {file.name}", subset(f"classes:{digest}", numbers))
    how, decided = _settle(wish, None, None)
    text = f"{CLASS_FILE}:{digest}:{len(numbers)}"
    return _Resolved(f"{text}@{how}", text, entry.open(data_dir, "", how), how, decided)


def _path(text: str) -> Path:
    try:
        Path(text).exists()
    except OSError as error:  # a name too long, say
        raise UsageError(f"'{text[:40]}...' is no path here ({error.strerror}): check it") from error
    return Path(text)
