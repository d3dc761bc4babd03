"""Checkpoints of a run: written atomically, resumed from the newest readable one, and removed when old."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitattack.core.errors import UsageError, VitattackError
from vitattack.core.files import is_disk_full, no_pipe, replace_content

FORMAT = 1


def write_durably(path: Path, content: bytes | memoryview) -> None:
    """Write a file of the run whole or not at all, with an error that names the fix."""
    try:
        replace_content(path, content)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        fix = (
            "free some space and run the same command to resume"
            if is_disk_full(error)
            else "give another folder with --out"
        )
        raise VitattackError(f"cannot write {path} ({reason}), what was stored before is still there: {fix}") from error


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints in one folder, of which the newest `keep` are kept; `confirm` raises if the folder is not ours any more."""

    folder: Path
    keep: int = 2
    confirm: Callable[[], None] = lambda: None

    def save(self, step: int, content: dict[str, Any]) -> Path:
        """Store the state after `step` optimiser steps, then remove old checkpoints."""
        self.confirm()
        buffer = io.BytesIO()
        torch.save({"format": FORMAT, **content}, buffer)
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"step-{step:09d}.pt"
        write_durably(path, buffer.getbuffer())
        # a checkpoint further on was unreadable, or the run would have resumed from it: it does not count
        older = [other for other in self.paths() if other.name < path.name]
        left_by_kills = self.folder.glob(".step-*.tmp")
        for old in (*older[: max(0, len(older) - self.keep + 1)], *left_by_kills):
            old.unlink(missing_ok=True)
        return path

    def newest(self) -> tuple[Path, dict[str, Any]] | None:
        """The newest readable checkpoint; corrupt ones are skipped."""
        paths = self.paths()
        for path in reversed(paths):
            content: Any = None
            with suppress(Exception):
                content = torch.load(no_pipe(path), map_location="cpu", weights_only=True)
            number = content.get("format") if isinstance(content, dict) else None
            if number == FORMAT:
                return path, content
            if isinstance(number, int) and number > FORMAT:
                raise UsageError(f"{path} was made by a newer vitattack: update it, or give another --out")
        if paths:
            raise UsageError(f"none of the checkpoints in {self.folder} can be read: start over with --fresh")
        return None

    def paths(self) -> list[Path]:
        """Checkpoint files, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(path for path in self.folder.iterdir() if re.fullmatch(r"step-\d{9,}\.pt", path.name))

    def after(self, path: Path) -> list[Path]:
        """Checkpoints further on than `path`; after the one from `newest`, these are the corrupt ones."""
        return [other for other in self.paths() if other.name > path.name]

    def clear(self) -> None:
        for path in self.paths():
            path.unlink(missing_ok=True)
