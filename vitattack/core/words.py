"""Texts from outside made safe: for a terminal, for a record, as a file name, and when asked whether they name a file."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

_SECRETS = re.compile(r"(\w+://)(?:[^\s/?#@]*@)?([^\s?#'\"<>]*)(?:[?#][^\s'\"<>]*)?")


def without_secrets(text: str) -> str:
    """A text whose web addresses lost what may be secret: user, password, query and fragment."""
    return _SECRETS.sub(r"\1\2", text)


def printable(text: str, length: int = 100) -> str:
    """One line without control characters, cut to `length`."""
    words = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return words if len(words) <= length else words[: length - 3] + "..."


def names_a_file(text: str) -> bool:
    """Whether a file of this name exists; False as well for text that no file can be called."""
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def safe_file_name(name: str) -> str:
    """A single file name for any text: it cannot leave its folder, and no two texts share one."""
    if re.fullmatch(r"[a-z0-9][a-z0-9_.-]{0,79}", name):  # unchanged, also where file names ignore case
        return name
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip(".-")[:80]
    return f"{readable}+{hashlib.sha256(name.encode()).hexdigest()[:8]}"
