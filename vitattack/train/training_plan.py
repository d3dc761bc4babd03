"""The cost of a run before it begins: parameters, FLOPs, and hours from ten steps that are thrown away."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

from vitattack.models.victim import Victim
from vitattack.models.zoo.count_figures import count_forward
from vitattack.train.loop.training_loop import TrainingLoop
from vitattack.train.loop.training_model import TrainingModel

STEPS = 10


@dataclass(frozen=True)
class TrainingPlan:
    """`flops` are those of one forward of one image; `seconds` is the median of the `measured` optimiser steps."""

    parameters: int
    flops: int
    batch_size: int
    steps_per_epoch: int
    epochs: int
    seconds: float
    measured: int

    @property
    def steps(self) -> int:
        return self.steps_per_epoch * self.epochs

    @property
    def hours(self) -> float:
        """Without probes and scale searches, which add a few per cent."""
        return self.steps * self.seconds / 3600

    def json(self) -> dict[str, Any]:
        return {**asdict(self), "steps": self.steps, "hours": self.hours}


def measure_plan(loop: TrainingLoop, steps: int = STEPS) -> TrainingPlan:
    """Measure a plan by making a few steps of the last epoch; the loop must not be used afterwards."""
    run, epochs = loop.run, loop.run.epochs
    # Before the steps, which change weights but no shapes. A warm-up of the budget does not change the passes.
    parameters = sum(p.numel() for p in run.plain.parameters())
    flops = _forward_flops(run.plain)
    run.objective = loop.parts.objective
    seconds = []
    run.epochs = max(1, epochs)  # schedules are functions of the share of the run
    run.epoch = run.epochs - 1  # hooks that wait a few epochs, such as awp, are active by then
    for number in range(steps + 1):
        batch = loop.stream.batch(0, number % loop.stream.steps, run.processes.shard)
        began = time.perf_counter()
        loop.step(batch)
        seconds.append(time.perf_counter() - began)
    return TrainingPlan(
        parameters,
        flops,
        loop.stream.batch_size,
        run.steps,
        epochs,
        statistics.median(seconds[1:]),  # the first one is a warm-up
        steps,
    )


def _forward_flops(victim: Victim) -> int:
    """FLOPs of one forward of one image, counted in float32: meta tensors know no autocast, and the count is the same."""
    if not (isinstance(victim, TrainingModel) and victim.bf16):
        return count_forward(victim)[0]
    victim.bf16 = False
    try:
        return count_forward(victim)[0]
    finally:
        victim.bf16 = True
