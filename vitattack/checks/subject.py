"""Subject of the checks: a prepared model with its images, the run of `auto`, and small attacks on a few images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from vitattack.core.rng import SampleRng
from vitattack.evaluation.prepare import Prepared
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.victim import Victim
from vitattack.records.result import Result
from vitattack.records.stats import Verdict
from vitattack.threats.lp import LpBall

FEW = 32  # correctly classified images that small attacks run on


@dataclass(frozen=True)
class Subject:
    """A model under check. `run` evaluates attacks on the `few`, at the checked budget or at another."""

    prepared: Prepared
    ball: LpBall
    auto: Result
    few: tuple[Tensor, Tensor]
    rows: tuple[int, ...]  # of the few
    run: Callable[[Sequence[str], LpBall], Sequence[Result]]
    can_calibrate: bool = True  # whether there are other images for attacks that learn from some
    known: dict[tuple[str, LpBall], Result] = field(default_factory=dict)  # of attacks that ran before

    @property
    def victim(self) -> Victim:
        return self.prepared.victim

    @property
    def rng(self) -> SampleRng:
        return SampleRng(self.prepared.setup.seed, self.rows).child("check")

    @cached_property
    def has_attention(self) -> bool:
        return len(attention_layers(self.victim, self.few[0][:1])) > 0

    @cached_property
    def fell_to_auto(self) -> frozenset[int]:
        """Rows of images that `auto` breaks."""
        return frozenset(r.index for r in self.auto.records if r.status == "fooled")

    def broken(self, attack: str, ball: LpBall | None = None) -> frozenset[int]:
        """Rows among the few that an attack breaks."""
        return self._rows_broken(self.result(attack, ball))

    @property
    def verdicts(self) -> list[dict[int, Verdict]]:
        """Verdicts of each attack within the checked budget, by row."""
        known = [result for (_, ball), result in self.known.items() if ball == self.ball]
        return [{self.rows[r.index]: Verdict.of(r) for r in result.records} for result in known]

    def result(self, attack: str, ball: LpBall | None = None) -> Result:
        """The result of an attack on the few, run once."""
        key = attack, ball or self.ball
        if key not in self.known:
            (self.known[key],) = self.run([attack], key[1])
        return self.known[key]

    def _rows_broken(self, result: Result) -> frozenset[int]:
        return frozenset(self.rows[r.index] for r in result.records if r.status == "fooled")

    def at(self, eps: float) -> LpBall:
        return replace(self.ball, eps=eps)

    def margins(self, attack: str) -> Tensor:
        """The best margin that an attack saw on each of the few; NaN where it reports none."""
        records = self.result(attack).records
        return torch.tensor([float(r.evidence.get("margin", float("nan"))) for r in records])

    def next(self, attack: str) -> str:
        return self.auto.job.next_run(attack).removeprefix("next: ")
