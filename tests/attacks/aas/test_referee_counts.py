"""Counts of the referee: an example counts if it fools the plain model inside the budget, and mistakes are shown."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.conftest import tiny_vit, toy_pictures
from vitattack.attacks import attack_text
from vitattack.attacks.aas.report import referee, referee_section
from vitattack.attacks.base import Crafted
from vitattack.attacks.gradient.loop import Gradient
from vitattack.core.rng import SampleRng
from vitattack.records.job import Job
from vitattack.records.record import SampleRecord, Status
from vitattack.records.report_section import Run
from vitattack.threats.lp import LpBall

JOB = Job("m", "aas(pgd)", "linf:8/255", "d", "w", "p")


def record(index: int, status: Status, base: bool, aas: bool, *, fragile: bool = False) -> SampleRecord:
    evidence: dict[str, int | float | str] = {"base_fooled": base, "aas_fooled": aas}
    violation = status == "invalid"
    return SampleRecord(index, 0, 0, 1, status, 0.1, fragile, violation, 1, 5, 5, evidence)


RECORDS = [
    record(0, "robust", False, False),
    record(1, "fooled", True, False),
    record(2, "fooled", False, True),
    record(3, "invalid", True, True),  # the example of the base attack broke the budget
    record(4, "robust", False, False),
]


def test_samples_without_a_valid_verdict_are_robust_in_no_row() -> None:
    found = referee(Run(JOB, RECORDS))
    assert found is not None and found.aas is not None
    assert (found.base.correct, found.aas.correct, found.union.correct) == (3, 3, 2)
    for accuracy in (found.base, found.aas, found.union):
        assert accuracy.high == pytest.approx(replace_invalid(accuracy.correct).high)
    assert found.invalid == 1 and found.json()["invalid"] == 1
    (section,) = referee_section(Run(JOB, RECORDS))
    assert any("1 sample has no valid verdict" in note for note in section.tables[0].notes)


def replace_invalid(correct: int):  # type: ignore[no-untyped-def]
    from vitattack.records.stats import share

    return share(correct, 5, most=correct + 1)


def test_without_any_nothing_is_said() -> None:
    valid = [r for r in RECORDS if r.status != "invalid"]
    found = referee(Run(JOB, valid))
    assert found is not None and "invalid" not in found.json()
    assert found.base.correct == 3 and found.union.correct == 2


def test_a_success_that_was_not_reproduced_may_count_either_way() -> None:
    loose = [replace(RECORDS[0], fragile=True, evidence={"base_fooled": True, "aas_fooled": False}), *RECORDS[1:3]]
    found = referee(Run(JOB, loose))
    assert found is not None and found.aas is not None
    assert found.base.correct == 2 and found.base.low < found.aas.low


def test_an_example_beyond_the_budget_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an inner attack that breaks it; the views get their turn on such samples."""
    victim, x = tiny_vit(), toy_pictures(6)
    y = victim(x).argmax(1)
    attack = attack_text.build("scale(0.5, pgd(steps=2))", LpBall("linf", 1e-6))
    attack = attack.prepare(victim, lambda: (x, y), rng=SampleRng(0, (0,)))
    original = Gradient.__call__

    def too_far(self: Gradient, victim: torch.nn.Module, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        crafted = original(self, victim, x, y, rng=rng)  # type: ignore[arg-type]
        return Crafted(1 - x, {**crafted.evidence, "fooled": torch.ones_like(crafted.evidence["fooled"])})

    monkeypatch.setattr(Gradient, "__call__", too_far)
    evidence = attack(victim, x, y, rng=SampleRng(0, tuple(range(6)))).evidence
    assert bool((victim(1 - x).argmax(1) != y).any()), "the examples do fool, but from too far away"
    for name in ("fooled", "base_fooled", "aas_fooled", "scaled_examples_fool_plain"):
        assert not bool(evidence[name].any()), name
