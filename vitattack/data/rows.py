"""Which rows a text in brackets means."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import numpy as np

from vitattack.core.errors import UsageError


def split(text: str) -> tuple[str, str | None]:
    """The name, and the rows in brackets behind it; brackets of another kind belong to a path."""
    found = re.fullmatch(r"(.+?)(?:\[(\d*:\d*|random:[^\[\]]*|file:.*)\])?", text.strip(), flags=re.DOTALL)
    if not found:
        raise UsageError("the data set has no name: write cifar10-demo, cifar10, folder:PATH or npz:PATH")
    if found[2] is None and (odd := re.fullmatch(r"([^:]+)\[([^\[\]]*)\]", text.strip())):
        return odd[1], odd[2]
    return found[1], found[2]


def draw(count: int, seed: int, total: int) -> tuple[int, ...]:
    """A draw without replacement, ascending: which images are drawn matters, and files are read forwards."""
    rows = np.sort(np.random.Generator(np.random.Philox(key=seed)).permutation(total)[:count])
    return tuple(int(row) for row in rows)


def select(text: str | None, total: int, whole: str) -> tuple[tuple[int, ...], str]:
    """The rows and their canonical text; empty for all of them."""
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
        return draw(count, seed, total), f"random:{count}:{seed}"
    if text.startswith("file:"):
        return _rows_from_file(Path(text.removeprefix("file:")), total)
    raise UsageError(f"rows '{text}' are not understood: write :1000 for the first 1000 or random:500:1 (count, seed)")


def digest_of(rows: tuple[int, ...]) -> str:
    return hashlib.sha256(",".join(map(str, rows)).encode()).hexdigest()


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
    return rows, f"file:{digest_of(rows)[:12]}:{len(rows)}"
