"""Words from outside made safe: for a terminal, as a file name, as the question whether they name a file."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path


def printable(text: str, length: int = 100) -> str:
    """Words from outside, fit for a terminal: one line and no control characters."""
    words = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return words if len(words) <= length else words[: length - 3] + "..."


def is_file(text: str) -> bool:
    """Whether a word from outside names a file; one that no file can have is none."""
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def plain(name: str) -> str:
    """A name as one file name: nothing in it can leave a folder, and two names never share one."""
    if re.fullmatch(r"[a-z0-9][a-z0-9_.-]{0,79}", name):  # as it is, also where file names ignore case
        return name
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip(".-")[:80]
    return f"{readable}+{hashlib.sha256(name.encode()).hexdigest()[:8]}"
