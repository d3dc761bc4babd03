"""Checkpoints of a run: written whole or not at all, the newest that can be read goes on, old ones are removed."""

from __future__ import annotations

import io
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitattack.core.errors import UsageError, VitattackError
from vitattack.core.files import is_disk_full, replace_content

FORMAT = 1


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """All of it or nothing: beside the file first, flushed to the disk, then in its place."""
    try:
        replace_content(path, content)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        fix = (
            "free some space and run the same command to go on"
            if is_disk_full(error)
            else "give another folder with --out"
        )
        raise VitattackError(f"cannot write {path} ({reason}), what was stored before is still there: {fix}") from error


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run folder; the newest `keep` stay."""

    folder: Path
    keep: int = 2

    def save(self, step: int, content: dict[str, Any]) -> Path:
        """Stores the state after `step` optimiser steps, then removes what is too old."""
        buffer = io.BytesIO()
        torch.save({"format": FORMAT, **content}, buffer)
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"step-{step:09d}.pt"
        write_bytes(path, buffer.getbuffer())
        # one that claims to be ahead could not be read, or this run would not be here: it does not count
        before = [other for other in self.paths() if other.name < path.name]
        left_by_a_kill = self.folder.glob(".step-*.tmp")
        for old in (*before[: max(0, len(before) - self.keep + 1)], *left_by_a_kill):
            old.unlink(missing_ok=True)
        return path

    def newest(self) -> tuple[Path, dict[str, Any]] | None:
        """The last checkpoint that can be read: one a broken disk spoiled is passed over."""
        paths = self.paths()
        for path in reversed(paths):
            with suppress(Exception):
                content = torch.load(path, map_location="cpu", weights_only=True)
                if isinstance(content, dict) and content.get("format") == FORMAT:
                    return path, content
        if paths:
            raise UsageError(f"none of the checkpoints in {self.folder} can be read: start over with --fresh")
        return None

    def paths(self) -> list[Path]:
        """Oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(path for path in self.folder.iterdir() if re.fullmatch(r"step-\d{9,}\.pt", path.name))

    def after(self, path: Path) -> list[Path]:
        """Those that claim to be newer; beside the one that `newest` gave, they could not be read."""
        return [other for other in self.paths() if other.name > path.name]

    def clear(self) -> None:
        for path in self.paths():
            path.unlink(missing_ok=True)
