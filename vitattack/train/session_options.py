"""Options of a training session: they change how a run proceeds, never its outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean

# Tracker -> the package it needs, which is also the name of the module.
TRACKERS = ("tensorboard", "wandb", "trackio")


@dataclass(frozen=True)
class SessionOptions:
    keep: int = 2  # checkpoints
    save_every: int = 1000  # steps between checkpoints, besides the end of every epoch
    workers: int = 1
    log: tuple[str, ...] = ()
    log_every: int = 10  # steps
    keep_going: bool = False  # warn where a run would be stopped early

    def __post_init__(self) -> None:
        if min(self.keep, self.save_every, self.log_every) < 1 or self.workers < 0:
            raise UsageError(
                "a run keeps at least 1 checkpoint, saves and logs every 1 or more steps, and has 0 or more workers"
            )
        check_trackers(self.log)


def check_trackers(names: Sequence[str]) -> None:
    """Refuse unknown and uninstalled trackers before the first epoch instead of after it."""
    for name in names:
        if name not in TRACKERS:
            raise UsageError(did_you_mean("tracker", name, TRACKERS))
        if find_spec(name) is None:
            raise UsageError(f"--log {name} needs the package {name}: pip install {name}")
