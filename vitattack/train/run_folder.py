"""The folder of a training run: its place, its lock, and the finished run inside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitattack.core.errors import UsageError
from vitattack.core.files import file_sha256, no_pipe, read_json
from vitattack.core.locks import lock_file
from vitattack.train.loop.checkpoints import Checkpoints
from vitattack.train.loop.initial_weights import run_key
from vitattack.train.loop.logs import is_row, read_rows
from vitattack.train.loop.reporter import Row
from vitattack.train.loop.result_checksum import with_checksum
from vitattack.train.recipe import Recipe
from vitattack.train.recipe_file import recipe_from_json
from vitattack.train.recipe_parts import canonical_recipe

SCHEMA = 1  # of result.json
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
    """The finished run in a folder, if there is one; a result that is damaged is written again by its run."""
    path = folder / "result.json"
    result = read_json(path)
    if result is None:
        return None
    schema = result.get("schema")
    if type(schema) is int and schema > SCHEMA:
        raise UsageError(f"{path} was written by a newer vitattack: update it, or give another --out")
    crc, epochs = result.get("crc"), result.get("epochs")
    if crc is None:  # of the first versions
        epochs = read_rows(folder / "epochs.jsonl")
    elif result != with_checksum(result) or not (isinstance(epochs, list) and all(map(is_row, epochs))):
        return None
    if schema != SCHEMA or not _is_whole(result) or not _has_weights(folder, result["weights"]):
        return None
    shown = {name: value for name, value in result.items() if name not in ("crc", "epochs")}
    return TrainedRun(folder, tuple(epochs), shown)


def _is_whole(result: dict[str, Any]) -> bool:
    """Whether a result holds what a report of its run needs."""
    types: dict[str, tuple[type, ...]] = {
        "recipe": (dict,),
        "weights": (dict,),
        "chosen_by": (str,),
        "num_classes": (int,),
        "parameters": (int,),
        "hours": (int, float),
        "adapter": (str, type(None)),
    }
    if not all(name in result and isinstance(result[name], kind) for name, kind in types.items()):
        return False
    try:
        recipe_from_json(result["recipe"])
    except UsageError:
        return False
    rows = [result.get(name) for name in ("best", "last")]
    return all(row is None or (is_row(row) and {"epoch", "loss"} <= row.keys()) for row in rows)


def _has_weights(folder: Path, weights: dict[str, Any]) -> bool:
    """Whether both weights files are there, with the bytes that the result was written for."""
    for name in ("best", "last"):
        about, path = weights.get(name), folder / f"{name}.safetensors"
        if not (isinstance(about, dict) and path.is_file() and path.stat().st_size == about.get("size")):
            return False
        if file_sha256(path) != about.get("sha256"):
            return False
    return True


@contextmanager
def locked_folder(folder: Path, *, owner: bool) -> Iterator[Callable[[], None]]:
    """Create the folder and, as its owner, keep other runs out of it; the lock of a killed process is free again.

    Yields a function that raises if the folder has vanished or was taken over meanwhile.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = no_pipe(folder / ".lock").open("w")
    except OSError as error:
        raise UsageError(f"cannot write {folder} ({error.strerror}): give another folder with --out") from error
    with stream:
        lock = lock_file(stream, Path(stream.name), f"training in {folder}") if owner else None
        try:
            yield lock.confirm if lock is not None else lambda: None
        finally:
            if lock is not None:
                lock.release()


def clear_outputs(folder: Path, checkpoints: Checkpoints) -> None:
    """Remove everything a run stored, to start over."""
    checkpoints.clear()
    for name in OUTPUTS:
        with suppress(FileNotFoundError):
            (folder / name).unlink()
