"""The folder of a training run: its place, its lock, and the finished run inside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitattack.core.errors import UsageError
from vitattack.core.files import read_json, try_lock
from vitattack.train.loop.checkpoints import Checkpoints
from vitattack.train.loop.initial_weights import run_key
from vitattack.train.loop.logs import read_rows
from vitattack.train.loop.reporter import Row
from vitattack.train.parts import canonical_recipe
from vitattack.train.recipe import Recipe

OUTPUTS = ("result.json", "steps.jsonl", "epochs.jsonl", "epochs.csv", "best.safetensors", "last.safetensors")


@dataclass(frozen=True)
class TrainedRun:
    """A finished run: its folder, the rows of its epochs, and the content of `result.json`."""

    folder: Path
    epochs: tuple[Row, ...]
    result: dict[str, Any]
    is_main: bool = True  # whether this process reports for all

    @property
    def best(self) -> Path:
        return self.folder / "best.safetensors"

    @property
    def last(self) -> Path:
        return self.folder / "last.safetensors"


def folder_of(recipe: Recipe, out: str | Path, key: str | None = None) -> Path:
    """Where the run of a recipe is stored; its key is computed unless given."""
    return Path(out) / f"{recipe.name}-{(key or run_key(canonical_recipe(recipe)))[:8]}"


def finished_run(folder: Path) -> TrainedRun | None:
    """The finished run in a folder, if there is one."""
    result = read_json(folder / "result.json")
    if result is None or not (folder / "last.safetensors").is_file():
        return None
    return TrainedRun(folder, tuple(read_rows(folder / "epochs.jsonl")), result)


@contextmanager
def locked_folder(folder: Path, *, owner: bool) -> Iterator[None]:
    """Create the folder and, as its owner, keep other runs out of it; the lock of a killed process is free again."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = (folder / ".lock").open("w")
    except OSError as error:
        raise UsageError(f"cannot write {folder} ({error.strerror}): give another folder with --out") from error
    with stream:
        if owner and not try_lock(stream):
            raise UsageError(f"another process is training in {folder}: wait for it, or give another --out")
        yield


def clear_outputs(folder: Path, checkpoints: Checkpoints) -> None:
    """Remove everything a run stored, to start over."""
    checkpoints.clear()
    for name in OUTPUTS:
        with suppress(FileNotFoundError):
            (folder / name).unlink()
