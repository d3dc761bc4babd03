"""The numbers of a run: JSON lines and CSV in its folder, and the trackers that were asked for."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from vitattack.core.errors import UsageError
from vitattack.core.files import append_line, write_atomically
from vitattack.core.registry import did_you_mean

# Tracker -> the module it needs and the package that has it.
TRACKERS = {
    "tensorboard": ("tensorboard", "tensorboard"),
    "wandb": ("wandb", "wandb"),
    "trackio": ("trackio", "trackio"),
}
Row = Mapping[str, float]


class Tracker(Protocol):
    def log(self, step: int, row: Row) -> None: ...

    def close(self) -> None: ...


def check_trackers(names: Sequence[str]) -> None:
    """Said in the first second, not after the first epoch."""
    for name in names:
        if name not in TRACKERS:
            raise UsageError(did_you_mean("tracker", name, TRACKERS))
        module, package = TRACKERS[name]
        if find_spec(module) is None:
            raise UsageError(f"--log {name} needs the package {package}: pip install {package}")


class Log:
    """`steps.jsonl`, `epochs.jsonl` and `epochs.csv`. What a resumed run does again is cut off first."""

    def __init__(self, folder: Path, step: int, trackers: Sequence[str] = (), about: Mapping[str, Any] | None = None):
        self._steps, self._epochs, self._csv = (folder / n for n in ("steps.jsonl", "epochs.jsonl", "epochs.csv"))
        for path in (self._steps, self._epochs):
            _keep_until(path, step)
        self._write_csv()
        self._trackers = [_tracker(name, folder, dict(about or {})) for name in trackers]

    def step(self, row: Row) -> None:
        _append(self._steps, row)
        for tracker in self._trackers:
            tracker.log(int(row["step"]), {k: v for k, v in row.items() if k != "step"})

    def epoch(self, row: Row) -> None:
        _append(self._epochs, row)
        self._write_csv()
        for tracker in self._trackers:
            tracker.log(int(row["step"]), {f"epoch/{k}": v for k, v in row.items() if k != "step"})

    def epochs(self) -> list[dict[str, float]]:
        return read_rows(self._epochs)

    def close(self) -> None:
        for tracker in self._trackers:
            tracker.close()

    def _write_csv(self) -> None:
        """Written anew each time: a column may turn up late, such as what a hook logs from some epoch on."""
        rows = self.epochs()
        columns = list(dict.fromkeys(key for row in rows for key in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(self._csv, text.getvalue())


def _append(path: Path, row: Row) -> None:
    from vitattack.core.errors import VitattackError

    try:
        append_line(path, json.dumps(row))
    except OSError as error:
        raise VitattackError(
            f"cannot write {path} ({error.strerror}): free some space and run the same command to go on"
        ) from error


def read_rows(path: Path) -> list[dict[str, float]]:
    """The whole lines of a file; what a crash left of one is skipped."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        with suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict):
                found.append(row)
    return found


def _keep_until(path: Path, step: int) -> None:
    if path.exists():
        kept = [row for row in read_rows(path) if row.get("step", 0) <= step]
        write_atomically(path, "".join(json.dumps(row) + "\n" for row in kept))


def _tracker(name: str, folder: Path, about: dict[str, Any]) -> Tracker:
    if name == "tensorboard":
        return _TensorBoard(folder)
    return _Online(name, folder, about)


class _TensorBoard:
    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"))

    def log(self, step: int, row: Row) -> None:
        for key, value in row.items():
            self._writer.add_scalar(key, value, step)

    def close(self) -> None:
        self._writer.close()


class _Online:
    """Weights & Biases, or Trackio, which has the same three calls."""

    def __init__(self, name: str, folder: Path, about: dict[str, Any]) -> None:
        import importlib

        self._module: Any = importlib.import_module(name)
        more = {"id": folder.name.replace("+", "-"), "dir": str(folder), "resume": "allow"} if name == "wandb" else {}
        self._module.init(project="vitattack", name=folder.name, config=about, **more)

    def log(self, step: int, row: Row) -> None:
        self._module.log(dict(row), step=step)

    def close(self) -> None:
        self._module.finish()
