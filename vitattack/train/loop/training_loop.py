"""The training loop: read it from top to bottom."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.models.victim import Victim
from vitattack.train.augment.base import augmented
from vitattack.train.data.batch import WHOLE, Batch, Shard, Stream, as_float, batch_rng, centre_crop, prefetched
from vitattack.train.hooks.base import CraftedBatch, RunState
from vitattack.train.loop.early_stop import AGAINST_NAN, TrainingStopped
from vitattack.train.loop.reporter import Row
from vitattack.train.objectives.base import Objective
from vitattack.train.objectives.shared_forward import batch_statistics
from vitattack.train.recipe_parts import Parts


class Observer:
    """Called by the loop as a run proceeds; this default does nothing."""

    def step(self, row: Row) -> None:
        """Called every few optimiser steps."""

    def due(self) -> bool:
        """Whether to save a checkpoint after this step, in the middle of an epoch."""
        return False

    def save(self, state: dict[str, Any]) -> None:
        """Save the state after a step; called in every process."""

    def probe(self, row: Row) -> Row:
        """More numbers for the row of a finished epoch."""
        return {}

    def epoch(self, row: Row, state: Callable[[], dict[str, Any]]) -> None:
        """Called after an epoch: the place to log, to keep the best weights and to stop."""


@dataclass
class TrainingLoop:
    """A run in progress: its state and parts, and its position in the data."""

    run: RunState
    parts: Parts
    stream: Stream
    accumulate: int = 1
    workers: int = 0
    log_every: int = 10
    observer: Observer = field(default_factory=Observer)
    at: int = 0  # the next batch of this epoch
    tally: dict[str, float] = field(default_factory=lambda: {"loss": 0.0, "steps": 0.0, "seconds": 0.0})

    def fit(self) -> None:
        """Train from the current position to the last epoch."""
        run, hooks = self.run, self.parts.hooks
        run.batches = self._first_batches
        while run.epoch < run.epochs:
            objective = self.parts.objective
            for hook in hooks:
                objective = hook.objective(objective, run)
            run.objective = objective
            if self.at == 0:
                self._seed()
                for hook in hooks:
                    hook.before_epoch(run)
            for batch in prefetched(self.stream, run.epoch, self.at, run.processes.shard, self.workers):
                run.stage(f"epoch {run.epoch + 1}", self.at, run.steps)
                self.step(batch)
                if self.observer.due() and self.at < run.steps:
                    self.observer.save(self.state())
            run.stage(f"epoch {run.epoch + 1}", run.steps, run.steps)
            self._end_epoch()

    def step(self, batch: Batch) -> None:
        """One optimiser step."""
        run, hooks, began = self.run, self.parts.hooks, time.perf_counter()
        self._seed()
        rate = self.parts.schedule(run.step, run.epochs * run.steps)
        for group in run.optimiser.param_groups:
            group["lr"] = group["peak"] * rate
        run.optimiser.zero_grad(set_to_none=True)
        run.victim.train()
        loss = torch.zeros((), device=run.processes.device)
        for number, piece in enumerate(self._pieces(batch)):
            loss += self._backward(piece, number)
        grads = [p.grad for p in run.victim.parameters() if p.grad is not None]
        run.processes.mean_([*grads, *batch_statistics(run.victim), loss])
        for hook in hooks:
            hook.before_step(run)
        run.optimiser.step()
        for hook in hooks:
            hook.restore(run)
        for hook in hooks:
            hook.after_step(run)
        run.step += 1
        self.at += 1
        self._count(float(loss), rate, time.perf_counter() - began)

    def _backward(self, piece: Batch, number: int) -> Tensor:
        """Add the gradient of one piece of a batch; return its share of the loss."""
        run, objective = self.run, self.run.objective
        assert objective is not None
        rank, world = run.processes.shard
        shard = Shard(rank * self.accumulate + number, world * self.accumulate)
        rng = batch_rng(run.seed, run.epoch, self.at, self.stream.batch_size, shard)
        x, y = piece.x.to(run.processes.device, non_blocking=True), piece.y.to(run.processes.device, non_blocking=True)
        x, y = augmented(Batch(x, y), self.parts.augmentations, rng)
        share = self._loss(objective, x, y, rng.child("attack")) / self.accumulate
        share.backward()  # type: ignore[no-untyped-call]
        return share.detach()

    def _loss(self, objective: Objective, x: Tensor, y: Tensor, rng: SampleRng) -> Tensor:
        run, hooks = self.run, [hook for hook in self.parts.hooks if hook.acts_before_loss]
        if not hooks:
            return objective.craft_and_loss(run.victim, x, y, rng=rng)
        crafted = CraftedBatch(x, objective.craft(run.victim, x, y, rng=rng), y)

        def loss() -> Tensor:
            return objective.loss(run.victim, *crafted)

        for hook in hooks:
            hook.before_loss(run, crafted, loss)
        return loss()

    def _pieces(self, batch: Batch) -> Iterator[Batch]:
        size = len(batch.x) // self.accumulate
        for at in range(0, size * self.accumulate, size):
            yield Batch(batch.x[at : at + size], batch.y[at : at + size])

    def _seed(self) -> None:
        """Seed torch's generator (dropout, stochastic depth) from the position, so that checkpoints need not store it."""
        key = f"{self.run.seed}|{self.run.step}|{self.at}|{self.run.processes.shard.rank}"
        torch.manual_seed(int.from_bytes(hashlib.blake2b(key.encode(), digest_size=7).digest(), "little"))

    def _count(self, loss: float, rate: float, seconds: float) -> None:
        self.tally = {
            "loss": self.tally["loss"] + loss,
            "steps": self.tally["steps"] + 1,
            "seconds": self.tally["seconds"] + seconds,
        }
        if loss != loss or abs(loss) == float("inf"):
            raise TrainingStopped(f"the loss of step {self.run.step} is {loss}: {AGAINST_NAN}")
        if self.run.step % self.log_every == 0 or self.at == self.run.steps:
            self.observer.step({"step": self.run.step, "epoch": self.run.epoch + 1, "loss": loss, "rate": rate})

    def _end_epoch(self) -> None:
        run = self.run
        row: Row = {"epoch": run.epoch + 1, "step": run.step, "loss": self.tally["loss"] / max(1, self.tally["steps"])}
        row["seconds"] = round(self.tally["seconds"], 3)
        for hook in self.parts.hooks:
            run.numbers.update(hook.after_epoch(run))
        row |= run.numbers
        row |= self.observer.probe(row)
        run.numbers = {}
        run.epoch, self.at = run.epoch + 1, 0
        self.tally = dict.fromkeys(self.tally, 0.0)
        self.observer.epoch(row, self.state)

    def _first_batches(self, count: int) -> list[Batch]:
        batches = []
        for step in range(min(count, self.stream.steps)):
            x, y = self.stream.batch(self.run.epoch, step, WHOLE)
            x = centre_crop(as_float(x.to(self.run.processes.device)), self.run.plain.input_size)
            batches.append(Batch(x, y.to(self.run.processes.device)))
        return batches

    @property
    def exported(self) -> Attackable:
        """The view to probe and export: with averaged weights if a hook keeps some."""
        for hook in self.parts.hooks:
            view = hook.averaged(self.run)
            if view is not None:
                return view
        return self.run.victim

    def plain(self) -> Victim:
        """The exported view as an ordinary victim, with the additions of hooks folded into its weights."""
        view = self.exported
        for hook in reversed(self.parts.hooks):
            view = hook.plain(view)
        assert isinstance(view, Victim), "a hook wrapped the victim and does not unwrap it"
        return view

    def state(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on."""
        return {
            "position": [self.run.epoch, self.at, self.run.step],
            "victim": self.run.victim.state_dict(),
            "optimiser": self.run.optimiser.state_dict(),
            "hooks": [hook.state_dict() for hook in self.parts.hooks],
            "tally": dict(self.tally),
            "numbers": dict(self.run.numbers),
        }

    def load(self, state: dict[str, Any]) -> None:
        epoch, at, step = (int(number) for number in state["position"])
        if not 0 <= epoch <= self.run.epochs or not 0 <= at <= self.run.steps or step != epoch * self.run.steps + at:
            raise ValueError(f"no position in this run is {state['position']}")
        tally = {name: float(state["tally"][name]) for name in self.tally}
        numbers = {str(name): float(number) for name, number in state["numbers"].items()}
        self.run.victim.load_state_dict(state["victim"])
        self.run.optimiser.load_state_dict(state["optimiser"])
        for hook, hook_state in zip(self.parts.hooks, state["hooks"], strict=True):
            hook.load_state_dict(hook_state)
        self.run.epoch, self.at, self.run.step = epoch, at, step
        self.tally, self.run.numbers = tally, numbers
