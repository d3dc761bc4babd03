"""The training loop: read it from top to bottom."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vitattack.core.rng import SampleRng
from vitattack.models.victim import Victim
from vitattack.train.data.augment import augmented
from vitattack.train.data.batch import WHOLE, Batch, Shard, Stream, as_float, batch_rng, batches, middle
from vitattack.train.hooks.hooks import Drawn, Run
from vitattack.train.loop.probes import Stopped
from vitattack.train.objectives.objectives import AtOnce, Objective
from vitattack.train.objectives.shared_forward import statistics
from vitattack.train.parts import Parts


class Observer:
    """What a run tells while it goes on; the default tells nothing and stores nothing."""

    def step(self, row: dict[str, float]) -> None:
        """Every few optimiser steps."""

    def due(self) -> bool:
        """Whether a checkpoint is wanted after this step, in the middle of an epoch."""
        return False

    def save(self, state: dict[str, Any]) -> None:
        """The state after a step; called by every process."""

    def probe(self, row: dict[str, float]) -> dict[str, float]:
        """More numbers for the row of an epoch that has ended."""
        return {}

    def epoch(self, row: dict[str, float], state: Callable[[], dict[str, Any]]) -> None:
        """An epoch has ended: the place to log, to keep the best weights and to stop."""


@dataclass
class Loop:
    """A run in progress: what `run` and `parts` hold, and where in the data it is."""

    run: Run
    parts: Parts
    stream: Stream
    accumulate: int = 1
    workers: int = 0
    log_every: int = 10
    observer: Observer = field(default_factory=Observer)
    at: int = 0  # the next batch of this epoch
    tally: dict[str, float] = field(default_factory=lambda: {"loss": 0.0, "steps": 0.0, "seconds": 0.0})

    def fit(self) -> None:
        """From wherever the run stands to its last epoch."""
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
            for batch in batches(self.stream, run.epoch, self.at, run.team.shard, self.workers):
                self.step(batch)
                if self.observer.due() and self.at < run.steps:
                    self.observer.save(self.state())
            self._end_epoch()

    def step(self, batch: Batch) -> None:
        """One optimiser step."""
        run, hooks, began = self.run, self.parts.hooks, time.perf_counter()
        self._seed()
        rate = self.parts.rate(run.step, run.epochs * run.steps)
        for group in run.optimiser.param_groups:
            group["lr"] = group["peak"] * rate
        run.optimiser.zero_grad(set_to_none=True)
        run.victim.train()
        loss = torch.zeros((), device=run.team.device)
        for number, piece in enumerate(self._pieces(batch)):
            loss += self._backward(piece, number)
        grads = [p.grad for p in run.victim.parameters() if p.grad is not None]
        run.team.mean_([*grads, *statistics(run.victim), loss])
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
        """Adds the gradient of one piece of a batch; gives its share of the loss."""
        run, objective = self.run, self.run.objective
        assert objective is not None
        rank, world = run.team.shard
        part = Shard(rank * self.accumulate + number, world * self.accumulate)
        rng = batch_rng(run.seed, run.epoch, self.at, self.stream.batch_size, part)
        x, y = piece.x.to(run.team.device, non_blocking=True), piece.y.to(run.team.device, non_blocking=True)
        x, y = augmented(Batch(x, y), self.parts.augment, rng)
        share = self._loss(objective, x, y, rng.child("attack")) / self.accumulate
        share.backward()  # type: ignore[no-untyped-call]
        return share.detach()

    def _loss(self, objective: Objective, x: Tensor, y: Tensor, rng: SampleRng) -> Tensor:
        run, looking = self.run, [hook for hook in self.parts.hooks if hook.looks_between]
        if isinstance(objective, AtOnce) and not looking:
            return objective.at_once(run.victim, x, y, rng=rng)
        drawn = Drawn(x, objective.craft(run.victim, x, y, rng=rng), y)

        def loss() -> Tensor:
            return objective.loss(run.victim, *drawn)

        for hook in looking:
            hook.before_loss(run, drawn, loss)
        return loss()

    def _pieces(self, batch: Batch) -> Iterator[Batch]:
        size = len(batch.x) // self.accumulate
        for at in range(0, size * self.accumulate, size):
            yield Batch(batch.x[at : at + size], batch.y[at : at + size])

    def _seed(self) -> None:
        """torch's own generator (dropout, stochastic depth) as a function of the position, so that none is stored."""
        key = f"{self.run.seed}|{self.run.step}|{self.at}|{self.run.team.shard.rank}"
        torch.manual_seed(int.from_bytes(hashlib.blake2b(key.encode(), digest_size=7).digest(), "little"))

    def _count(self, loss: float, rate: float, seconds: float) -> None:
        self.tally = {
            "loss": self.tally["loss"] + loss,
            "steps": self.tally["steps"] + 1,
            "seconds": self.tally["seconds"] + seconds,
        }
        if loss != loss or abs(loss) == float("inf"):
            raise Stopped(
                f"the loss of step {self.run.step} is {loss}: lower the learning rate, add grad_clip(1.0) or "
                "use precision=fp32"
            )
        if self.run.step % self.log_every == 0 or self.at == self.run.steps:
            self.observer.step({"step": self.run.step, "epoch": self.run.epoch + 1, "loss": loss, "rate": rate})

    def _end_epoch(self) -> None:
        run = self.run
        row = {"epoch": run.epoch + 1, "step": run.step, "loss": self.tally["loss"] / max(1, self.tally["steps"])}
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
        made = []
        for step in range(min(count, self.stream.steps)):
            x, y = self.stream.batch(self.run.epoch, step, WHOLE)
            x = middle(as_float(x.to(self.run.team.device)), self.run.plain.input_size)
            made.append(Batch(x, y.to(self.run.team.device)))
        return made

    @property
    def exported(self) -> nn.Module:
        """The view to be probed: the averaged weights where a hook keeps some."""
        for hook in self.parts.hooks:
            view = hook.averaged(self.run)
            if view is not None:
                return view
        return self.run.victim

    def plain(self) -> Victim:
        """The exported view as an ordinary victim, what hooks added worked into its weights."""
        view = self.exported
        for hook in reversed(self.parts.hooks):
            view = hook.plain(view)
        assert isinstance(view, Victim), "a hook wrapped the victim and does not unwrap it"
        return view

    def state(self) -> dict[str, Any]:
        """Everything that decides how the run goes on."""
        return {
            "position": [self.run.epoch, self.at, self.run.step],
            "victim": self.run.victim.state_dict(),
            "optimiser": self.run.optimiser.state_dict(),
            "hooks": [hook.state_dict() for hook in self.parts.hooks],
            "tally": dict(self.tally),
            "numbers": dict(self.run.numbers),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.run.victim.load_state_dict(state["victim"])
        self.run.optimiser.load_state_dict(state["optimiser"])
        for hook, held in zip(self.parts.hooks, state["hooks"], strict=True):
            hook.load_state_dict(held)
        self.run.epoch, self.at, self.run.step = state["position"]
        self.tally, self.run.numbers = dict(state["tally"]), dict(state["numbers"])
