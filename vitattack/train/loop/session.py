"""A training session around the loop: resuming, checkpoints, logs, probes, early stops, and the exported weights."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from vitattack.core.errors import UsageError, first_line
from vitattack.core.files import file_sha256, json_text, write_atomically
from vitattack.core.machine import machine_facts
from vitattack.models.attention.baked_scales import adapters_of
from vitattack.train.data.training_data import TrainingData
from vitattack.train.loop.broken_models import fault_of
from vitattack.train.loop.checkpoints import Checkpoints, write_durably
from vitattack.train.loop.early_stop import EarlyStop, TrainingStopped
from vitattack.train.loop.epoch_probes import AccuracyProbe, AttentionProbe
from vitattack.train.loop.logs import RunLog, is_row
from vitattack.train.loop.reporter import Reporter, Row
from vitattack.train.loop.result_checksum import with_checksum
from vitattack.train.loop.training_loop import Observer, TrainingLoop
from vitattack.train.loop.training_model import safetensors_bytes
from vitattack.train.objectives.standard import Standard
from vitattack.train.recipe import Recipe
from vitattack.train.session_options import SessionOptions


class Session(Observer):
    """Observes the loop of one run; only the main process writes files."""

    def __init__(
        self,
        recipe: Recipe,
        key: str,
        loop: TrainingLoop,
        data: TrainingData,
        checkpoints: Checkpoints,
        folder: Path,
        options: SessionOptions,
        reporter: Reporter,
    ) -> None:
        self.recipe, self.loop, self.folder, self.options, self.reporter = recipe, loop, folder, options, reporter
        self.key = key
        if loop.run.processes.is_main:
            loop.run.stage = reporter.stage
        self.checkpoints, self.digest = checkpoints, data.train.digest()
        self.attention_probe = AttentionProbe(data.x, data.y)
        self.accuracy_probe = AccuracyProbe(data.x, data.y, loop.parts.ball, min(recipe.probe, len(data.x)))
        attacking = not isinstance(loop.parts.objective, Standard)
        self.early_stop = EarlyStop(data.train.num_classes, attacking)
        judged_by_attack = attacking and self.accuracy_probe.attacked > 0
        self.criterion = ("robust" if judged_by_attack else "clean") if len(data.x) else "loss"
        self.best: Row | None = None
        self._best_sha256: str | None = None  # of its weights file
        self.seconds, self._since = 0.0, time.monotonic()
        self.processes = loop.run.processes
        self.log: RunLog | None = None
        self._past: list[Row] | None = None  # rows of the epochs before the checkpoint

    def resume(self) -> None:
        """Resume from the newest checkpoint, if there is one, and open the logs."""
        stored = self.checkpoints.newest()
        run = self.loop.run
        if stored is not None:
            path, state = stored
            if state.get("recipe") != self.key or state.get("data") != self.digest:
                changed = "data" if state.get("recipe") == self.key else "recipe"
                raise UsageError(
                    f"{path} was made with another {changed}: give another --out, or start over with --fresh"
                )
            try:
                self._load(state)
            except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
                raise UsageError(
                    f"{path} does not fit the recipe ({type(error).__name__}: {first_line(error)}), it was changed or made "
                    "by another version: start over with --fresh"
                ) from error
        if self.processes.is_main:
            self._check_best()
            self.log = RunLog(self.folder, run.step, self.options.log, self.recipe.json(), self._past)
            self.reporter.begin(self.recipe, self.folder, run.step, run.epochs * run.steps)
            for note in self.log.damaged:
                self.reporter.warn(note)
            if stored is not None:
                for path in self.checkpoints.after(stored[0]):
                    self.reporter.warn(f"{path} cannot be read: resuming from {stored[0].name} instead")

    def _load(self, state: dict[str, Any]) -> None:
        self.loop.load(state["loop"])
        self.early_stop.load_state_dict(state["watch"])
        best = state["best"]
        if best is not None and not (is_row(best) and {"epoch", "loss", self.criterion} <= best.keys()):
            raise ValueError("its best epoch has no numbers")
        sha256 = state.get("best_sha256")  # like `epochs`, not in checkpoints of the first versions
        if not isinstance(sha256, str | None):
            raise ValueError("its best epoch has no hash")
        self.best, self._best_sha256, self.seconds = best, sha256, float(state["seconds"])
        past = state.get("epochs")
        if past is not None and not (isinstance(past, list) and all(map(is_row, past))):
            raise ValueError("its epochs have no numbers")
        self._past = past

    def step(self, row: Row) -> None:
        if self.log is not None:
            self.log.step(row)
            self.reporter.step(row)

    def due(self) -> bool:
        return self.loop.run.step % self.options.save_every == 0

    def save(self, state: dict[str, Any]) -> None:
        if self.processes.is_main:
            self.seconds, self._since = self._seconds(), time.monotonic()
            content = {
                "recipe": self.key,
                "data": self.digest,
                "loop": state,
                "watch": self.early_stop.state_dict(),
                "best": self.best,
                "best_sha256": self._best_sha256,
                "epochs": self.log.epochs() if self.log is not None else [],
                "seconds": self.seconds,
            }
            self.checkpoints.save(self.loop.run.step, content)
        self.processes.wait()

    def probe(self, row: Row) -> Row:
        view = self.loop.exported
        numbers = self.accuracy_probe.measure(view, self.processes, partial(self.loop.run.stage, "probing"))
        return numbers | (self.attention_probe.measure(self.loop.plain()) if self.processes.is_main else {})

    def epoch(self, row: Row, state: Callable[[], dict[str, Any]]) -> None:
        fault = fault_of(self.loop.plain(), row, half=self.recipe.export == "fp16")
        reason = fault or self.early_stop.reason(row)
        better = fault is None and (self.best is None or self._rank(row) > self._rank(self.best))
        if self.log is not None:
            self.log.epoch(row)
            self.reporter.epoch(row, better)
        if fault is not None or (reason is not None and not self.options.keep_going):
            raise TrainingStopped(f"stopped after epoch {row['epoch']}: {reason}{self._aside(fault is None)}")
        growing = row.get("eps", self.loop.run.eps) < self.loop.run.eps
        warning = reason or (None if growing else self.early_stop.warning(row))
        if warning is not None and self.log is not None:
            self.reporter.warn(warning)
        if better:
            self.best = row
            self._export("best")
        self.save(state())

    def finish(self) -> None:
        """Export the last weights (and the best, if no epoch was run) and write result.json."""
        self._export("last")
        if self.best is None:
            self._export("best")
        if self.log is None:
            return
        self._check_best()
        self.log.close()
        weights = {
            name: {"sha256": file_sha256(path), "size": path.stat().st_size, "adapter": adapter}
            for name in ("best", "last")
            for path in [self.folder / f"{name}.safetensors"]
            for adapter in [_adapter(path)]
        }
        rows = self.log.epochs()
        result = {
            "schema": 1,
            "recipe": self.recipe.json(),
            "chosen_by": self._chosen_by(),
            "best": self.best,
            "last": rows[-1] if rows and rows[-1]["step"] == self.loop.run.step else None,
            "weights": weights,
            "num_classes": self.loop.run.plain.num_classes,
            "adapter": weights.get("best", {}).get("adapter"),
            "steps": self.loop.run.step,
            "parameters": sum(p.numel() for p in self.loop.run.plain.parameters()),
            "processes": self.processes.shard.world,
            "hours": round(self._seconds() / 3600, 4),
            "provenance": {"threads": torch.get_num_threads(), **machine_facts(self.processes.device)},
        }
        write_atomically(self.folder / "result.json", json_text(with_checksum({**result, "epochs": rows})))

    def _aside(self, may_go_on: bool) -> str:
        """What to know about a run that is stopped: its best weights, and how it would go on regardless."""
        best = [f"the best weights so far are {self.folder / 'best.safetensors'}"] if self.best else []
        notes = [*best, *(["--keep-going continues regardless"] if may_go_on else [])]
        return f" ({'; '.join(notes)})" if notes else ""

    def _rank(self, row: Row) -> tuple[float, float]:
        if self.criterion == "loss":
            return -row["loss"], 0.0
        if self.criterion == "clean":
            return row["clean"], row["clean"]
        share = self.loop.parts.objective.robust_share
        return share * row["robust"] + (1 - share) * row["clean"], row["clean"]

    def _chosen_by(self) -> str:
        if self.criterion == "loss":
            return "the mean training loss of an epoch, for no image was held out"
        share = self.loop.parts.objective.robust_share
        if self.criterion == "robust" and share < 1:
            count = self.accuracy_probe.attacked
            return f"{share:g} of robust plus {1 - share:g} of clean accuracy on {count} held-out images"
        count = self.accuracy_probe.attacked if self.criterion == "robust" else len(self.accuracy_probe.x)
        return f"{self.criterion} accuracy on {count} held-out images"

    def _seconds(self) -> float:
        return self.seconds + time.monotonic() - self._since

    def _export(self, name: str) -> None:
        if self.processes.is_main:
            about = {"recipe": self.recipe.json(), "step": self.loop.run.step}
            frozen = {n for n, p in self.loop.run.plain.model.named_parameters() if not p.requires_grad}
            weights = safetensors_bytes(self.loop.plain().model, self.recipe.export == "fp16", about, frozen)
            self.checkpoints.confirm()
            write_durably(self.folder / f"{name}.safetensors", weights)
            if name == "best":
                self._best_sha256 = hashlib.sha256(weights).hexdigest()

    def _check_best(self) -> None:
        """Refuse a file that is not the best weights of this run, which no checkpoint holds."""
        path = self.folder / "best.safetensors"
        if self._best_sha256 is None or (path.is_file() and file_sha256(path) == self._best_sha256):
            return
        if _step_of(path) <= self.loop.run.step:  # else a kill came before the checkpoint: the file is written again
            raise UsageError(f"{path} is missing or damaged (it is not what its epoch stored): start over with --fresh")


def _step_of(path: Path) -> int:
    """The step after which a weights file was written; -1 if that cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            return int(json.loads(file.metadata()["vitattack"])["step"])
    except (OSError, SafetensorError, LookupError, TypeError, ValueError):
        return -1


def _adapter(path: Path) -> str | None:
    """The adapter a weights file needs; early weights of a run may need none, since scales of one always fold."""
    try:
        with safe_open(path, framework="pt") as file:
            return next(iter(adapters_of(file.keys())), None)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{path} is missing or damaged ({first_line(error)}): start over with --fresh") from error
