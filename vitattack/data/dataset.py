"""Data sets ready to read: chosen rows of a source, in order, with a canonical text and a digest."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from torch import Tensor

from vitattack.core.errors import UsageError, text_failure
from vitattack.data.catalogue import DATA_SETS
from vitattack.data.corruptions.names import PREFIX as CORRUPTED
from vitattack.data.corruptions.source import Corrupted
from vitattack.data.entry import DataEntry, Labelled, OpenedSet, Source
from vitattack.data.formats.arrays import npz_source
from vitattack.data.formats.row_sources import ImagesInMemory, ImageSource, TensorSource, class_folders
from vitattack.data.imagenet.classes import Classes, single_classes
from vitattack.data.imagenet.validation import ValidationSource
from vitattack.data.imagenet.validation_set import ValidationSet
from vitattack.data.labels.class_names import aliases, aliases_of, imagenet_aliases
from vitattack.data.labels.imagenet import classes_from_synsets
from vitattack.data.protocols import PROTOCOLS, EvaluationProtocol
from vitattack.data.request import CLASS_FILE, FOLDER, NPZ, DataRequest, as_path, check_folder, read_request
from vitattack.data.rows import digest_rows, draw_evenly, in_class_order, select_rows, split_rows
from vitattack.data.transform import Preprocessing
from vitattack.text.image_transform import parse_transform

LONGEST_CLASS_LIST = 100_000
Size = tuple[int, int]  # height and width


@dataclass(frozen=True)
class DataSet:
    """Rows of a source. `text` names them; records keep the row numbers of the source."""

    text: str
    source: Source
    rows: tuple[int, ...]
    classes: Classes | None = None
    protocol: Mapping[str, Any] = field(default_factory=dict)  # what is evaluated, for the result
    pool: Sequence[int] | None = None  # the rows to choose from, where not all of the source
    sizes: Mapping[int, Size] | None = None  # of the images by row, where they differ; `rows` are in their order

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def num_classes(self) -> int | None:
        return self.source.num_classes

    @property
    def set_name(self) -> str:
        """The set without rows and transform: equal names number the same images equally."""
        return str(self.protocol.get("data") or self.text.partition("[")[0])

    @property
    def class_aliases(self) -> Sequence[frozenset[str]] | None:
        """The names of its classes in the order of their labels, where they are known."""
        if self.classes is not None:  # for a model of ImageNet-1k, which is restricted to them
            return imagenet_aliases()
        source = self.source.inner if isinstance(self.source, Corrupted) else self.source
        if isinstance(source, ImageSource) and source.class_names is not None:
            return aliases(source.class_names)
        return aliases_of(self.set_name.removeprefix(f"{CORRUPTED}:"))

    def with_channels(self, count: int) -> DataSet:
        """The same images for a model that takes this many channels: image files are decoded as grey ones for one."""
        if isinstance(self.source, ImageSource):
            self.source.channels = count
        return self

    def digest(self) -> str:
        """A hash of the content of the chosen rows."""
        return self.source.digest(self.rows)

    def read(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Images in [0,1] and labels of some rows, in that order."""
        return self.source.read(rows)

    def spare(self, count: int) -> tuple[int, ...]:
        """Available rows that are not among the chosen ones: the first, or some of each class if they are in that order."""
        used = set(self.rows)
        rows = self.pool if self.pool is not None else range(len(self.source))
        left = tuple(row for row in rows if row not in used)
        labels = known_labels(self.source, left) or []
        return tuple(left[at] for at in draw_evenly(count, 0, labels)) if in_class_order(labels) else left[:count]

    def cut(self, batch_size: int, rows: Sequence[int] | None = None) -> Iterator[tuple[int, ...]]:
        """The rows of each batch, or those of some rows in their order; images of a batch have one size.

        They are always cut from the first row on, so that shards and resumed runs see equal batches.
        """
        for _, run in groupby(self.rows if rows is None else rows, self._size):
            same = tuple(run)
            for at in range(0, len(same), batch_size):
                yield same[at : at + batch_size]

    def alike(self, rows: Sequence[int]) -> tuple[int, ...]:
        """Those of some rows whose images have the most frequent size among them."""
        most = Counter(map(self._size, rows)).most_common(1)
        return tuple(row for row in rows if self._size(row) == most[0][0])

    def _size(self, row: int) -> Size | None:
        return self.sizes[row] if self.sizes is not None else None


def load_data(
    text: str,
    *,
    limit: int | None = None,
    data_dir: Path | None = None,
    transform: str | None = None,
    model_transform: str = "none",
    px: int | None = None,
) -> DataSet:
    """Open `cifar10[:1000]`, `cifar10-c/fog/3`, `robustbench-imagenet-5k`, `folder:PATH`, `npz:PATH` and the like.

    `transform` is the caller's; `model_transform` and `px`, those of the model, apply where nobody names one.
    """
    check_folder(data_dir)
    request = read_request(text, limit)
    parse_transform(transform or "none")  # a mistake in it is refused whatever the data
    if request.corruption is not None:
        whole = f"{request.name}[{request.rows}]" if request.rows else request.name
        images = load_data(whole, data_dir=data_dir, transform=transform, model_transform=model_transform, px=px)
        return corrupted(images, *request.corruption)
    resolved = _resolve(request, data_dir, Preprocessing(transform, model_transform, px))
    source = resolved.opened.source
    base = resolved.opened.rows if resolved.opened.rows is not None else range(len(source))
    positions, selection = select_rows(request.rows, len(base), text, lambda: known_labels(source, base))
    rows = tuple(base[position] for position in positions)
    pool = None
    if isinstance(source, ValidationSource):
        source.require(rows)
        pool = sorted(set(source.available) & set(base))
    full = f"{resolved.text}[{selection}]" if selection else resolved.text
    return DataSet(full, source, rows, resolved.opened.classes, resolved.record(rows, len(base), selection), pool)


def corrupted(images: DataSet, kind: str, severity: int) -> DataSet:
    """A data set under one corruption, its rows numbered as before."""
    name, rows = split_rows(images.text)
    text = f"{CORRUPTED}:{name}/{kind}/{severity}" + (f"[{rows}]" if rows else "")
    protocol = {**images.protocol, "data": f"{CORRUPTED}:{images.set_name}/{kind}/{severity}"}
    return replace(images, text=text, source=Corrupted(images.source, kind, severity), protocol=protocol)


def known_labels(source: Source, rows: Sequence[int]) -> Sequence[int] | None:
    """The classes of some rows where they are known without images; validation images are in no order of classes."""
    return source.labels(rows) if isinstance(source, Labelled) and not isinstance(source, ValidationSource) else None


def from_tensors(x: Tensor, y: Tensor) -> DataSet:
    """Images and labels in memory as a data set, named by their content."""
    source = TensorSource(x, y)
    text = f"tensors:{source.digest(range(len(x)))[:16]}"
    return DataSet(text, source, tuple(range(len(x))), protocol={"name": None, "data": text, "n": len(x)})


def from_images(images: Sequence[Tensor], y: Tensor) -> DataSet:
    """Images of several sizes in memory, as `from_tensors`."""
    source = ImagesInMemory(images, y)
    text = f"tensors:{source.digest(range(len(images)))[:16]}"
    return DataSet(text, source, tuple(range(len(images))), protocol={"name": None, "data": text, "n": len(images)})


@dataclass(frozen=True)
class _Resolved:
    """An opened set before rows are chosen, with its canonical text and the transform it was opened with."""

    text: str
    data: str  # the text without transform
    opened: OpenedSet
    transform: str
    decided: str  # who named the transform
    protocol: str | None = None
    usual: str | None = None  # the transform of the protocol for this model

    def record(self, rows: tuple[int, ...], total: int, selection: str) -> dict[str, Any]:
        """The entries of a result that say what was evaluated."""
        classes = self.opened.classes
        content: dict[str, Any] = {
            "name": self.protocol,
            "data": self.data,
            "selection": selection or "all",
            "n": len(rows),
            "rows_sha256": digest_rows(rows),
            "transform": self.transform,
            "transform_from": self.decided,
            "num_classes": self.opened.source.num_classes,
            "classes": classes.name if classes else None,
            "classes_sha256": classes.sha256 if classes else None,
        }
        if self.protocol is None:
            return content
        protocol = PROTOCOLS[self.protocol]
        deviations = [] if protocol.published_ids else ["the images are a draw: those of the paper are not public"]
        if len(rows) < total:
            deviations.append(f"{len(rows)} of {total} images")
        if self.transform != self.usual:
            deviations.append(f"transform {self.transform} was asked for")
        return {**content, **protocol.record(self.opened.rows), "deviations": deviations}


def _resolve(request: DataRequest, data_dir: Path | None, wanted: Preprocessing) -> _Resolved:
    if request.kind == FOLDER:
        transform, decided = _settle(wanted, request.transform, None)
        opened = OpenedSet(class_folders(as_path(request.name), transform))
        return _Resolved(f"folder:{request.name}@{transform}", f"folder:{request.name}", opened, transform, decided)
    if request.kind == NPZ:
        text = f"npz:{request.name}"
        return _Resolved(text, text, OpenedSet(npz_source(as_path(request.name))), "none", "data")
    if request.kind == CLASS_FILE:
        return _class_file(request.name, data_dir, wanted)
    if request.protocol is not None:
        return _protocol(request, request.protocol, data_dir, wanted)
    entry = DATA_SETS[request.name]
    entry.check_part(request.part)
    name = f"{request.name}/{request.part}" if request.part not in ("", entry.default_part) else request.name
    if not entry.takes_transform:
        if request.transform is not None:
            request.require_transform(request.transform)
        return _Resolved(name, name, entry.open(data_dir, request.part), "none", "data")
    return _open(entry, name, request, data_dir, wanted)


def _open(entry: DataEntry, name: str, request: DataRequest, data_dir: Path | None, wanted: Preprocessing) -> _Resolved:
    transform, decided = _settle(wanted, request.transform, entry.transform)
    opened = entry.open(data_dir, request.part, transform)
    return _Resolved(f"{name}@{transform}", name, opened, transform, decided)


def _protocol(
    request: DataRequest, protocol: EvaluationProtocol, data_dir: Path | None, wanted: Preprocessing
) -> _Resolved:
    entry, text, usual = DATA_SETS[protocol.data], request.name, None
    if entry.takes_transform:
        transform, decided = _settle(wanted, request.transform, protocol.transform)
        text, usual = f"{text}@{transform}", _usual(wanted, protocol.transform)
    else:
        if request.transform is not None:
            request.require_transform(request.transform)
        transform, decided, usual = "none", "data", "none"
    opened = entry.open(data_dir, "", transform)
    opened = replace(opened, rows=protocol.rows_of(opened.source))
    return _Resolved(text, protocol.data, opened, transform, decided, request.name, usual)


def _class_file(path: str, data_dir: Path | None, wanted: Preprocessing) -> _Resolved:
    """ImageNet validation restricted to the classes listed in a file."""
    file = as_path(path)
    try:
        content = file.read_bytes()[:LONGEST_CLASS_LIST].decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read classes from '{path}' ({text_failure(error)}): give a text file of synsets"
        ) from error
    numbers = classes_from_synsets(content, f"'{path}'")
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    classes = single_classes(f"classes:{digest}", numbers)
    text = f"{CLASS_FILE}:{digest}:{len(numbers)}"
    entry = ValidationSet(f"the {len(numbers)} classes of {file.name}", classes)
    return _open(entry, text, DataRequest(text, CLASS_FILE, path), data_dir, wanted)


def _settle(wanted: Preprocessing, written: str | None, own: str | None) -> tuple[str, str]:
    transform, decided = wanted.settle(written, own)
    parse_transform(transform)
    return transform, decided


def _usual(wanted: Preprocessing, own: str | None) -> str | None:
    """The transform that applies if nobody asks for one, where that is known."""
    if own is not None and "{px}" in own and wanted.px is None:
        return None
    return replace(wanted, given=None).settle(None, own)[0]
