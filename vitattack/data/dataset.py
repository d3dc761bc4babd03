"""A data set by its text, such as `cifar10[random:500:1]`: which rows, in which order, with which digest."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from vitattack.data.catalogue import CATALOGUE
from vitattack.data.sources import FolderSource, Source, TensorSource, npz_source
from vitattack.data.transform import transform as make_transform
from vitattack.errors import UsageError
from vitattack.registry import did_you_mean


@dataclass(frozen=True)
class DataSet:
    """Rows of a source. `text` names them; records keep the row numbers of the source."""

    text: str
    source: Source
    rows: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def num_classes(self) -> int | None:
        return self.source.num_classes

    def digest(self) -> str:
        return self.source.digest(self.rows)

    def read(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        return self.source.read(rows)

    def cut(self, batch_size: int) -> Iterator[tuple[int, ...]]:
        """The rows of each batch: always cut from the first row on, so that shards and resumed runs see equal batches."""
        for at in range(0, len(self.rows), batch_size):
            yield self.rows[at : at + batch_size]


def load(text: str, *, limit: int | None = None, data_dir: Path | None = None, transform: str = "none") -> DataSet:
    """`cifar10`, `cifar10[:1000]`, `cifar10[random:500:1]`, `cifar10[file:rows.txt]`, `folder:PATH`, `npz:PATH`."""
    if data_dir is not None and not data_dir.is_dir():
        raise UsageError(f"data folder '{data_dir}' does not exist: give --data-dir a folder with the hub's layout")
    name, asked = _split(text)
    if limit is not None:
        if asked is not None:
            raise UsageError(f"data '{text}' is narrowed twice: give one of [...] and a limit")
        asked = f":{limit}"
    source, name = _open(name, data_dir, transform)
    rows, selection = _select(asked, len(source), text)
    return DataSet(f"{name}[{selection}]" if selection else name, source, rows)


def from_tensors(x: Tensor, y: Tensor) -> DataSet:
    source = TensorSource(x, y)
    return DataSet(f"tensors:{source.digest(range(len(x)))[:16]}", source, tuple(range(len(x))))


def _split(text: str) -> tuple[str, str | None]:
    """The name, and the rows in brackets behind it; brackets of another kind belong to a path."""
    found = re.fullmatch(r"(.+?)(?:\[(\d*:\d*|random:[^\[\]]*|file:.*)\])?", text.strip(), flags=re.DOTALL)
    if not found:
        raise UsageError("the data set has no name: write cifar10-demo, cifar10, folder:PATH or npz:PATH")
    if found[2] is None and (odd := re.fullmatch(r"([^:]+)\[([^\[\]]*)\]", text.strip())):
        return odd[1], odd[2]
    return found[1], found[2]


def _open(name: str, data_dir: Path | None, transform: str) -> tuple[Source, str]:
    kind, colon, path = name.partition(":")
    make_transform(transform)  # a mistake in it is worth a word whatever the data
    if colon and kind == "folder":
        return FolderSource(_path(path), transform), f"{name}@{transform}"
    if colon and kind == "npz":
        return npz_source(_path(path)), name
    if name not in CATALOGUE:
        raise UsageError(did_you_mean("data set", name, [*CATALOGUE, "folder:PATH", "npz:PATH"]))
    return CATALOGUE[name].open(data_dir), name


def _path(text: str) -> Path:
    try:
        Path(text).exists()
    except OSError as error:  # a name too long, say
        raise UsageError(f"'{text[:40]}...' is no path here ({error.strerror}): check it") from error
    return Path(text)


def _select(text: str | None, total: int, whole: str) -> tuple[tuple[int, ...], str]:
    if total == 0:
        raise UsageError(f"'{whole}' holds no image: check the file")
    if text is None:
        return tuple(range(total)), ""
    if found := re.fullmatch(r"(\d{0,12}):(\d{0,12})", text):
        first, last = int(found[1] or 0), min(int(found[2] or total), total)
        if first >= last:
            raise UsageError(f"rows {text} of '{whole}' hold no image (it has {total}): ask for at least one")
        chosen = f"{first or ''}:{last}" if first or last < total else ""
        return tuple(range(first, last)), chosen
    if found := re.fullmatch(r"random:(\d{1,12}):(\d{1,12})", text):
        count, seed = int(found[1]), int(found[2])
        if not 0 < count <= total:
            raise UsageError(f"cannot draw {count} of {total} images: ask for 1 to {total}")
        # Ascending: which images are drawn matters, their order does not, and files are read forwards.
        rows = np.sort(np.random.Generator(np.random.Philox(key=seed)).permutation(total)[:count])
        return tuple(int(row) for row in rows), f"random:{count}:{seed}"
    if text.startswith("file:"):
        return _rows_from_file(Path(text.removeprefix("file:")), total)
    raise UsageError(f"rows '{text}' are not understood: write :1000 for the first 1000 or random:500:1 (count, seed)")


def _rows_from_file(path: Path, total: int) -> tuple[tuple[int, ...], str]:
    try:
        words = path.read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(f"cannot read indices from '{path}' ({reason}): give a text file of row numbers") from error
    odd = [word for word in words if not (word.isascii() and word.isdecimal() and len(word) < 13)]
    if odd or not words:
        found = f"'{odd[0][:20]}'" if odd else "nothing"
        raise UsageError(f"'{path}' holds {found} where row numbers belong: write one whole number per line")
    rows = tuple(dict.fromkeys(map(int, words)))
    if max(rows) >= total:
        raise UsageError(f"'{path}' names row {max(rows)}, the data set ends at {total - 1}: use row numbers from 0 on")
    if len(rows) < len(words):
        raise UsageError(f"'{path}' names {len(words) - len(rows)} rows twice: each image counts once")
    return rows, f"file:{hashlib.sha256(','.join(map(str, rows)).encode()).hexdigest()[:12]}:{len(rows)}"
