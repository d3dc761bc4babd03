"""Near ties under `auto`: which survivors count as such, what they meet, and what the result says of those that are left."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.attacks.auto.test_attack import Levels, built
from vitattack import evaluate
from vitattack.attacks.auto import model_checks
from vitattack.attacks.auto.attack import Auto
from vitattack.attacks.auto.auto_stage import AutoStage
from vitattack.attacks.auto.numbering import NAMES, TIES
from vitattack.attacks.base import Attack, Crafted, blank_search
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.models.victim import Victim

ROWS = 64
NEAR = {61: 0.112, 62: 0.115, 63: 0.118}  # levels; all others are at 0.9, and one is a little farther than these


class Close(Levels):
    """Class 0 leads by the level less 0.05, so that few levels are near a tie at linf 0.05."""

    def forward(self, x: Tensor) -> Tensor:
        lead = torch.zeros(10, dtype=x.dtype)
        lead[0] = -1.0
        return super().forward(x) + lead


def close() -> tuple[Victim, Tensor, Tensor]:
    victim = Victim(Close(), name="close", num_classes=10, input_size=4)
    x = torch.full((ROWS, 3, 4, 4), 0.5)
    x[:, 0] = 0.9
    for row, level in {60: 0.2, **NEAR}.items():
        x[row, 0] = level
    return victim, x, torch.zeros(ROWS, dtype=torch.long)


def with_planted_ties(text: str = "auto") -> tuple[Auto, list[tuple[tuple[int, ...], type]]]:
    """`auto` whose stage for near ties breaks the last of its samples, and what it was asked, of whom."""
    asked: list[tuple[tuple[int, ...], type]] = []

    class Planted(Attack):
        def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
            asked.append((rng.index, type(victim)))
            x_adv, evidence = x.clone(), blank_search(x)
            x_adv[-1], evidence["fooled"][-1] = -9.0, True
            return Crafted(x_adv, evidence)

    return replace(built(text), ties=AutoStage(TIES, Planted())), asked


def test_only_survivors_much_nearer_than_the_median_are_near_ties() -> None:
    victim, x, y = close()
    attack, asked = with_planted_ties()
    evidence = attack(victim, x, y, rng=SampleRng(0, tuple(range(ROWS)))).evidence
    assert [rows for rows, _ in asked] == [tuple(NEAR)]
    assert evidence["fooled"].nonzero().flatten().tolist() == [63]
    assert int(evidence["stage"][63]) == NAMES.index(TIES)


def test_a_search_in_bfloat16_settles_near_ties_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_checks, "agreement", lambda *args: 1.0)
    victim, x, y = close()
    attack, asked = with_planted_ties()
    attack.in_half()(victim, x, y, rng=SampleRng(0, tuple(range(ROWS))))
    assert asked and {of for _, of in asked} == {Victim}


def test_a_budget_is_not_spent_on_near_ties() -> None:
    victim, x, y = close()
    attack, asked = with_planted_ties("auto(passes=600)")
    attack(victim, x, y, rng=SampleRng(0, tuple(range(ROWS))))
    assert not asked


def test_the_result_counts_the_near_ties_that_are_left() -> None:
    victim, x, y = close()
    found = evaluate(victim.model, "auto", threat="linf:0.05", data=(x, y), threads=1, certificate=False).results[0]
    (note,) = (note for section in found.sections for note in section.notes if note.startswith("near ties"))
    assert "within 3%" in note and ": 3, of which" in note and "broke 0; other noise" in note
    tied = [r for r in found.records if r.evidence.get(f"spent {TIES}")]
    assert [r.index for r in tied] == list(NEAR) and all(r.status == "robust" for r in tied)
