"""Skeletons of pages filled with their parts, and a policy that lets a browser use nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path

SOURCES = Path(__file__).parent / "browser"


def source(name: str) -> str:
    return (SOURCES / name).read_text(encoding="utf-8")


def filled(name: str, parts: Mapping[str, str]) -> str:
    """A skeleton with every `{{part}}` in its place; what a part says is not looked at again."""
    first, *pieces = source(name).split("{{")
    return first + "".join(parts[part] + rest for part, rest in (piece.split("}}", 1) for piece in pieces))


def policy(style: str, script: str | None = None) -> str:
    """Only this very style and script, pictures that are in the file, and no request of any kind."""
    scripts = "" if script is None else f"script-src {_hash(script)}; "
    return f"default-src 'none'; {scripts}style-src {_hash(style)}; img-src data:; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
