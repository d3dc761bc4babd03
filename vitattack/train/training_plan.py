"""The cost of a run before it begins: parameters, FLOPs, and hours from ten steps that are thrown away."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

from vitattack.core.progress import Counter
from vitattack.models.flops import count_forward
from vitattack.models.victim import Victim
from vitattack.train.loop.training_loop import TrainingLoop
from vitattack.train.loop.training_model import TrainingModel

STEPS = 10
LONGEST = 60.0  # seconds after which no further step is made


@dataclass(frozen=True)
class TrainingPlan:
    """`flops` are those of one forward of one image; `seconds` is the median of the `measured` optimiser steps.

    `steps_per_epoch` is None where the number of images is unknown; `assumed` says what had to be assumed.
    """

    parameters: int
    flops: int
    batch_size: int
    steps_per_epoch: int | None
    epochs: int
    seconds: float
    measured: int
    assumed: tuple[str, ...] = ()

    @property
    def steps(self) -> int | None:
        return None if self.steps_per_epoch is None else self.steps_per_epoch * self.epochs

    @property
    def hours(self) -> float | None:
        """Without probes and scale searches, which add a few per cent."""
        return None if self.steps is None else self.steps * self.seconds / 3600

    def json(self) -> dict[str, Any]:
        return {**asdict(self), "steps": self.steps, "hours": self.hours}


def measure_plan(
    loop: TrainingLoop,
    steps: int = STEPS,
    *,
    counted: bool = True,
    assumed: tuple[str, ...] = (),
    progress: Counter = lambda done, total: None,
) -> TrainingPlan:
    """Measure a plan by making a few steps of the last epoch; the loop must not be used afterwards.

    Slow machines make fewer steps, and one that takes minutes for the first makes no other. `counted` says whether the
    loop's data has as many images as the recipe's.
    """
    run, epochs = loop.run, loop.run.epochs
    # Before the steps, which change weights but no shapes. A warm-up of the budget does not change the passes.
    parameters = sum(p.numel() for p in run.plain.parameters())
    flops = _forward_flops(run.plain)
    run.objective = loop.parts.objective
    seconds: list[float] = []
    for group in run.optimiser.param_groups:
        group["peak"] = 0.0  # steps cost the same, and stand-ins for the weights and images cannot diverge
    run.epochs = max(1, epochs)  # schedules are functions of the share of the run
    run.epoch = run.epochs - 1  # hooks that wait a few epochs, such as awp, are active by then
    for number in range(steps + 1):
        progress(number, steps + 1)
        batch = loop.stream.batch(0, number % loop.stream.steps, run.processes.shard)
        began = time.perf_counter()
        loop.step(batch)
        seconds.append(time.perf_counter() - began)
        if run.processes.shard.world == 1 and sum(seconds) > LONGEST:  # several processes must agree
            break
    progress(steps + 1, steps + 1)
    timed = seconds[1:] or seconds  # the first one is a warm-up
    return TrainingPlan(
        parameters,
        flops,
        loop.stream.batch_size,
        run.steps if counted else None,
        epochs,
        statistics.median(timed),
        len(timed),
        assumed,
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
