"""Rows of a data set as a text in brackets: a slice, a seeded draw from all rows or from each class, or a file of numbers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from vitattack.core.errors import UsageError, text_failure


def split_rows(text: str) -> tuple[str, str | None]:
    """The name, and the rows in brackets behind it; brackets of another kind belong to a path."""
    match = re.fullmatch(
        r"(.+?)(?:\[(\d*:\d*|random:[^\[\]]*|even:[^\[\]]*|limit:[^\[\]]*|file:.*)\])?", text.strip(), flags=re.DOTALL
    )
    if not match:
        raise UsageError("the data set has no name: write cifar10-demo, cifar10, folder:PATH or npz:PATH")
    if match[2] is None and (malformed := re.fullmatch(r"([^:]+)\[([^\[\]]*)\]", text.strip())):
        return malformed[1], malformed[2]
    return match[1], match[2]


@dataclass(frozen=True)
class Slice:
    """Consecutive rows from `first` up to `last`, which is not included."""

    first: int
    last: int | None


@dataclass(frozen=True)
class Draw:
    """A random subset without replacement, fixed by the seed."""

    count: int
    seed: int


@dataclass(frozen=True)
class EvenDraw:
    """A random subset with as many images of each class as there are, to one; fixed by the seed."""

    count: int
    seed: int


@dataclass(frozen=True)
class Limit:
    """So many images: the first ones, or an even draw where the rows are in the order of their classes."""

    count: int


@dataclass(frozen=True)
class Listed:
    """The rows listed in a text file."""

    path: Path


def parse_rows(text: str) -> Slice | Draw | EvenDraw | Limit | Listed:
    """The selection that the text in brackets describes."""
    if match := re.fullmatch(r"(\d{0,12}):(\d{0,12})", text):
        return Slice(int(match[1] or 0), int(match[2]) if match[2] else None)
    if match := re.fullmatch(r"random:(\d{1,12}):(\d{1,12})", text):
        return Draw(int(match[1]), int(match[2]))
    if match := re.fullmatch(r"even:(\d{1,12}):(\d{1,12})", text):
        return EvenDraw(int(match[1]), int(match[2]))
    if match := re.fullmatch(r"limit:(\d{1,12})", text):
        return Limit(int(match[1]))
    if text.startswith("file:"):
        return Listed(Path(text.removeprefix("file:")))
    raise UsageError(f"rows '{text}' are not understood: write :1000 for the first 1000 or random:500:1 (count, seed)")


def check_rows(text: str | None, total: int, whole: str) -> None:
    """Refuse rows that `total` images do not have; `whole` is the full data text for the message."""
    if total == 0:
        raise UsageError(f"'{whole}' holds no image: check the file")
    selection = Slice(0, None) if text is None else parse_rows(text)
    match selection:
        case Slice(first, last) if first >= (total if last is None else min(last, total)):
            raise UsageError(f"rows {text} of '{whole}' hold no image (it has {total}): ask for at least one")
        case Limit(0):
            raise UsageError(f"a limit of 0 leaves no image of '{whole}': ask for at least one")
        case Draw(count, _) | EvenDraw(count, _) if not 0 < count <= total:
            raise UsageError(f"cannot draw {count} of {total} images: ask for 1 to {total}")
        case Listed(path):
            _listed_rows(path, total)


def select_rows(
    text: str | None, total: int, whole: str, labels: Callable[[], Sequence[int] | None] = lambda: None
) -> tuple[tuple[int, ...], str]:
    """The rows and their canonical text; empty for all of them. `labels` has the class of every row, where it is known."""
    check_rows(text, total, whole)
    selection = Slice(0, None) if text is None else parse_rows(text)
    match selection:
        case Slice(first, asked_last):
            last = total if asked_last is None else min(asked_last, total)
            canonical = f"{first or ''}:{last}" if first or last < total else ""
            return tuple(range(first, last)), canonical
        case Draw(count, seed):
            return draw_rows(count, seed, total), f"random:{count}:{seed}"
        case EvenDraw(count, seed):
            return draw_evenly(count, seed, labels() or [0] * total), f"even:{count}:{seed}"
        case Limit(count) if count < total and in_class_order(known := labels() or []):
            return draw_evenly(count, 0, known), f"even:{count}:0"
        case Limit(count):
            return tuple(range(min(count, total))), f":{count}" if count < total else ""
        case Listed(path):
            rows = _listed_rows(path, total)
            return rows, f"file:{digest_rows(rows)[:12]}:{len(rows)}"


def draw_rows(count: int, seed: int, total: int) -> tuple[int, ...]:
    """A draw without replacement, ascending: which images are drawn matters, and files are read forwards."""
    import numpy as np

    rows = np.sort(np.random.Generator(np.random.Philox(key=seed)).permutation(total)[:count])
    return tuple(int(row) for row in rows)


def draw_evenly(count: int, seed: int, labels: Sequence[int]) -> tuple[int, ...]:
    """A draw with equally many rows of each class as far as it has them, ascending."""
    import numpy as np

    order = np.random.Generator(np.random.Philox(key=seed)).permutation(len(labels))
    classes = np.asarray(labels)[order]
    by_class = np.argsort(classes, kind="stable")
    starts = np.searchsorted(classes[by_class], classes[by_class])
    turn = np.empty(len(labels), dtype=np.int64)  # the first of every class, then the second, and so on
    turn[by_class] = np.arange(len(labels)) - starts
    chosen = order[np.argsort(turn, kind="stable")[:count]]
    return tuple(int(row) for row in np.sort(chosen))


def in_class_order(labels: Sequence[int]) -> bool:
    """Whether all rows of a class follow each other, for several classes."""
    changes = sum(one != two for one, two in pairwise(labels))
    return 0 < changes == len(set(labels)) - 1 < len(labels) - 1


def digest_rows(rows: tuple[int, ...]) -> str:
    """The hash of row numbers in their order."""
    return hashlib.sha256(",".join(map(str, rows)).encode()).hexdigest()


def _listed_rows(path: Path, total: int) -> tuple[int, ...]:
    try:
        words = path.read_text().split()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot read indices from '{path}' ({text_failure(error)}): give a text file of row numbers"
        ) from error
    invalid = [word for word in words if not (word.isascii() and word.isdecimal() and len(word) < 13)]
    if invalid or not words:
        content = f"'{invalid[0][:20]}'" if invalid else "nothing"
        raise UsageError(f"'{path}' holds {content} where row numbers belong: write one whole number per line")
    rows = tuple(dict.fromkeys(map(int, words)))
    if max(rows) >= total:
        raise UsageError(f"'{path}' names row {max(rows)}, the data set ends at {total - 1}: use row numbers from 0 on")
    if len(rows) < len(words):
        raise UsageError(f"'{path}' names {len(words) - len(rows)} rows twice: each image counts once")
    return rows
