"""Experiment trackers that a run can log to: TensorBoard, Weights & Biases, Trackio."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol


class Tracker(Protocol):
    def log(self, step: int, row: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def open_tracker(name: str, folder: Path, about: dict[str, Any]) -> Tracker:
    if name == "tensorboard":
        return _TensorBoard(folder)
    return _OnlineTracker(name, folder, about)


class _TensorBoard:
    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"))

    def log(self, step: int, row: Mapping[str, float]) -> None:
        for key, value in row.items():
            self._writer.add_scalar(key, value, step)

    def close(self) -> None:
        self._writer.close()


class _OnlineTracker:
    """Weights & Biases, or Trackio, which shares its interface."""

    def __init__(self, name: str, folder: Path, about: dict[str, Any]) -> None:
        self._module: Any = importlib.import_module(name)
        extra = {"id": folder.name.replace("+", "-"), "dir": str(folder), "resume": "allow"} if name == "wandb" else {}
        self._module.init(project="vitattack", name=folder.name, config=about, **extra)

    def log(self, step: int, row: Mapping[str, float]) -> None:
        self._module.log(dict(row), step=step)

    def close(self) -> None:
        self._module.finish()
