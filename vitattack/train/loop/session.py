"""What surrounds the loop of one run: checkpoints, logs, probes, early stops, and the weights that are kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from vitattack.core.errors import UsageError, first_line
from vitattack.core.files import file_sha256, json_text, write_atomically
from vitattack.evaluation.provenance import machine
from vitattack.models.attention.baked_scales import adapters_of
from vitattack.train.data.streams import Data
from vitattack.train.loop.checkpoint import Checkpoints, write_bytes
from vitattack.train.loop.logs import Log, check_trackers
from vitattack.train.loop.loop import Loop, Observer
from vitattack.train.loop.model import exported
from vitattack.train.loop.probes import AttentionProbe, Probe, Stopped, Watch
from vitattack.train.objectives.objectives import Standard
from vitattack.train.recipe import Recipe

Row = dict[str, float]


class Reporter:
    """What a run tells while it goes on; the default tells nothing."""

    def begin(self, recipe: Recipe, folder: Path, step: int, total: int) -> None:
        """Steps made before, in another session, and all there are."""

    def step(self, row: Row) -> None: ...

    def epoch(self, row: Row, best: bool) -> None: ...

    def warn(self, text: str) -> None: ...


@dataclass(frozen=True)
class Options:
    """What changes how a run goes, never what comes out of it."""

    keep: int = 2  # checkpoints
    save_every: int = 1000  # steps, besides the end of every epoch
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


class Keeper(Observer):
    """Stores, logs, probes and warns; `first` alone writes."""

    def __init__(
        self,
        recipe: Recipe,
        key: str,
        loop: Loop,
        data: Data,
        checkpoints: Checkpoints,
        folder: Path,
        options: Options,
        reporter: Reporter,
    ) -> None:
        self.recipe, self.loop, self.folder, self.options, self.reporter = recipe, loop, folder, options, reporter
        self.key = key
        self.checkpoints, self.digest = checkpoints, data.train.digest()
        self.attention = AttentionProbe(data.x, data.y)
        self.probing = Probe(data.x, data.y, loop.parts.ball, min(recipe.probe, len(data.x)))
        attacking = not isinstance(loop.parts.objective, Standard)
        self.watch = Watch(data.train.num_classes, attacking)
        attacked = attacking and self.probing.attacked > 0
        self.by = ("robust" if attacked else "clean") if len(data.x) else "loss"
        self.best: Row | None = None
        self.seconds, self._since = 0.0, time.monotonic()
        self.team = loop.run.team
        self.log: Log | None = None

    def resume(self) -> None:
        """From the newest checkpoint, if there is one."""
        stored = self.checkpoints.newest()
        run = self.loop.run
        if stored is not None:
            path, state = stored
            if state.get("recipe") != self.key or state.get("data") != self.digest:
                what = "data" if state.get("recipe") == self.key else "recipe"
                raise UsageError(f"{path} was made with another {what}: give another --out, or start over with --fresh")
            try:
                self._load(state)
            except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
                raise UsageError(
                    f"{path} does not fit the recipe ({type(error).__name__}: {first_line(error)}), it was changed or made "
                    "by another version: start over with --fresh"
                ) from error
        if self.team.first:
            self.log = Log(self.folder, run.step, self.options.log, self.recipe.json())
            self.reporter.begin(self.recipe, self.folder, run.step, run.epochs * run.steps)
            if stored is not None:
                for path in self.checkpoints.after(stored[0]):
                    self.reporter.warn(f"{path} cannot be read: going on from {stored[0].name}, before it")

    def _load(self, state: dict[str, Any]) -> None:
        self.loop.load(state["loop"])
        self.watch.load_state_dict(state["watch"])
        self.best, self.seconds = state["best"], float(state["seconds"])

    def step(self, row: Row) -> None:
        if self.log is not None:
            self.log.step(row)
            self.reporter.step(row)

    def due(self) -> bool:
        return self.loop.run.step % self.options.save_every == 0

    def save(self, state: dict[str, Any]) -> None:
        if self.team.first:
            self.seconds, self._since = self._seconds(), time.monotonic()
            content = {
                "recipe": self.key,
                "data": self.digest,
                "loop": state,
                "watch": self.watch.state_dict(),
                "best": self.best,
                "seconds": self.seconds,
            }
            self.checkpoints.save(self.loop.run.step, content)
        self.team.wait()

    def probe(self, row: Row) -> Row:
        view = self.loop.exported
        numbers = self.probing.look(view, self.team)
        return numbers | (self.attention.look(self.loop.plain()) if self.team.first else {})

    def epoch(self, row: Row, state: Callable[[], dict[str, Any]]) -> None:
        reason = self.watch.check(row)
        better = self.best is None or self._rank(row) > self._rank(self.best)
        if self.log is not None:
            self.log.epoch(row)
            self.reporter.epoch(row, better)
        if reason is not None and not self.options.keep_going:
            kept = f"the best weights so far are {self.folder / 'best.safetensors'}; " if self.best else ""
            raise Stopped(f"stopped after epoch {row['epoch']}: {reason} ({kept}--keep-going goes on regardless)")
        growing = row.get("eps", self.loop.run.eps) < self.loop.run.eps
        doubt = reason or (None if growing else self.watch.doubt(row))
        if doubt is not None and self.log is not None:
            self.reporter.warn(doubt)
        if better:
            self.best = row
            self._export("best")
        self.save(state())

    def finish(self) -> None:
        """The last weights, and the best ones where no epoch was run."""
        self._export("last")
        if self.best is None:
            self._export("best")
        if self.log is None:
            return
        self.log.close()
        weights = {
            name: {"sha256": file_sha256(path), "size": path.stat().st_size, "adapter": _adapter(path)}
            for name in ("best", "last")
            if (path := self.folder / f"{name}.safetensors").is_file()
        }
        rows = self.log.epochs()
        result = {
            "schema": 1,
            "recipe": self.recipe.json(),
            "chosen_by": self._chosen_by(),
            "best": self.best,
            "last": rows[-1] if rows else None,
            "weights": weights,
            "num_classes": self.loop.run.plain.num_classes,
            "adapter": weights.get("best", {}).get("adapter"),
            "steps": self.loop.run.step,
            "parameters": sum(p.numel() for p in self.loop.run.plain.parameters()),
            "processes": self.team.shard.world,
            "hours": round(self._seconds() / 3600, 4),
            "provenance": {"threads": torch.get_num_threads(), **machine(self.team.device)},
        }
        write_atomically(self.folder / "result.json", json_text(result))

    def _rank(self, row: Row) -> tuple[float, float]:
        if self.by == "loss":
            return -row["loss"], 0.0
        return row[self.by], row["clean"]

    def _chosen_by(self) -> str:
        if self.by == "loss":
            return "the mean training loss of an epoch, for no image was held out"
        count = self.probing.attacked if self.by == "robust" else len(self.probing.x)
        return f"{self.by} accuracy on {count} held-out images"

    def _seconds(self) -> float:
        return self.seconds + time.monotonic() - self._since

    def _export(self, name: str) -> None:
        if self.team.first:
            about = {"recipe": self.recipe.json(), "step": self.loop.run.step}
            weights = exported(self.loop.plain().model, self.recipe.export == "fp16", about)
            write_bytes(self.folder / f"{name}.safetensors", weights)


def _adapter(path: Path) -> str | None:
    """What the weights of a file are loaded with: scales fold as long as they are one, even where later ones do not."""
    with safe_open(path, framework="pt") as file:
        return next(iter(adapters_of(file.keys())), None)
