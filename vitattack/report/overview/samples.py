"""The records of one run as columns: a number per sample, in the order of the data set."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitattack.records.record import STATUSES, SampleRecord

Column = NDArray[Any]
MOVES = ("tx", "ty", "angle")  # evidence of spatial attacks: the transform that made a candidate
ROBUST, FOOLED = STATUSES.index("robust"), STATUSES.index("fooled")


@dataclass(frozen=True)
class Samples:
    """Columns of equal length; -1 stands for no class, no step or no stage, NaN for no measure."""

    index: Column
    label: Column
    clean: Column
    adversarial: Column
    status: Column  # places in STATUSES
    fragile: Column
    step: Column  # of the first success
    stage: Column  # number of the stage that fooled it
    passes: Column  # forwards and backwards
    size: Column  # of the candidate's change, in the measure of the threat
    margin: Column  # best margin that the attack reached; above 0 the sample is fooled
    distance: Column  # smallest change that a minimum-norm attack fooled it with
    moves: Mapping[str, Column]

    @classmethod
    def of(cls, records: Sequence[SampleRecord]) -> Samples:
        records = sorted(records, key=lambda record: record.index)  # transfer writes them in an order of its own
        numbers = {name: n for n, name in enumerate(STATUSES)}
        evidence = [r.evidence for r in records]

        def measure(name: str) -> Column:
            return np.array([_number(each.get(name)) for each in evidence], np.float32)

        moved = any("tx" in each for each in evidence)
        return cls(
            index=np.array([r.index for r in records], np.int64),
            label=np.array([r.label for r in records], np.int32),
            clean=np.array([r.clean for r in records], np.int32),
            adversarial=np.array([r.adversarial for r in records], np.int32),
            status=np.array([numbers[r.status] for r in records], np.uint8),
            fragile=np.array([r.fragile for r in records], bool),
            step=np.array([min(r.first_fooled, 2**31 - 1) for r in records], np.int32),
            stage=np.array([_stage(each.get("stage")) for each in evidence], np.int16),
            passes=np.array([min(r.forwards + r.backwards, 2**62) for r in records], np.int64),
            size=np.array([math.nan if r.size < 0 else r.size for r in records], np.float32),
            margin=measure("margin"),
            distance=measure("distance"),
            moves={name: measure(name) for name in MOVES} if moved else {},
        )

    def __len__(self) -> int:
        return len(self.index)

    @property
    def attacked(self) -> Column:
        """Which samples the model classified correctly before the attack."""
        return np.asarray(self.clean == self.label)

    @property
    def robust(self) -> Column:
        return np.asarray(self.status == ROBUST)

    @property
    def fooled(self) -> Column:
        return np.asarray(self.status == FOOLED)


def _number(value: object) -> float:
    """A measure in the evidence; NaN without one, and where it stands for none, as the least float does."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e37:
        return math.nan
    return float(value)


def _stage(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**15 else -1
