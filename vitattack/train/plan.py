"""What a run will take, before it is begun: figures of the model, steps, and hours from ten steps that are thrown away."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

from vitattack.models.victim import Victim
from vitattack.models.zoo.figures import counted
from vitattack.train.loop.loop import Loop
from vitattack.train.loop.model import Learner

STEPS = 10


@dataclass(frozen=True)
class Plan:
    """`flops` are those of one forward of one image; `seconds` of one optimiser step, the median of those measured."""

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
        """Without probes and scale searches, which take a few per cent."""
        return self.steps * self.seconds / 3600

    def json(self) -> dict[str, Any]:
        return {**asdict(self), "steps": self.steps, "hours": self.hours}


def plan(loop: Loop, steps: int = STEPS) -> Plan:
    """The plan of a run at its beginning, by making a few steps of its last epoch; the loop must not be used afterwards."""
    run, epochs = loop.run, loop.run.epochs
    # Figures first: steps would only change weights, not shapes. A warm-up of the budget does not change the passes.
    parameters = sum(p.numel() for p in run.plain.parameters())
    flops = _flops(run.plain)
    run.objective = loop.parts.objective
    seconds = []
    run.epochs = max(1, epochs)  # rates are shares of the run
    run.epoch = run.epochs - 1  # where hooks that wait a few epochs, as awp may, do their work
    for number in range(steps + 1):
        batch = loop.stream.batch(0, number % loop.stream.steps, run.team.shard)
        began = time.perf_counter()
        loop.step(batch)
        seconds.append(time.perf_counter() - began)
    return Plan(
        parameters,
        flops,
        loop.stream.batch_size,
        run.steps,
        epochs,
        statistics.median(seconds[1:]),  # the first one warms up
        steps,
    )


def _flops(victim: Victim) -> int:
    """Of one forward of one image; tensors without values know no autocast, and it would not change the count."""
    if not (isinstance(victim, Learner) and victim.bf16):
        return counted(victim)[0]
    victim.bf16 = False
    try:
        return counted(victim)[0]
    finally:
        victim.bf16 = True
