"""The judge: successes count if the plain model errs twice, inside the budget."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitattack.attacks.base import Crafted
from vitattack.core.rng import SampleRng
from vitattack.evaluation.judge import clean_answers, judge
from vitattack.models.victim import Victim
from vitattack.records.record import SampleRecord
from vitattack.threats.lp import LpBall

BALL = LpBall("linf", 0.1)


class BrightnessClassifier(nn.Module):
    """Class 1 if the mean is above a half; NaN if the first pixel is exactly 0.25."""

    def forward(self, x: Tensor) -> Tensor:
        score = x.flatten(1).mean(1) - 0.5
        score = torch.where(x[:, 0, 0, 0] == 0.25, torch.nan, score)
        return torch.stack([-score, score], 1)


class DependsOnBatch(nn.Module):
    """Class 1 in batches of more than two: an exaggerated rounding difference."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tensor([[0.0, 1.0 if len(x) > 2 else -1.0]]).expand(len(x), 2)


def victim(model: nn.Module) -> Victim:
    return Victim(model, name="v", num_classes=2, input_size=2)


def verdicts(model: nn.Module, x: Tensor, x_adv: Tensor, **evidence: Tensor) -> list[SampleRecord]:
    v, y = victim(model), torch.zeros(len(x), dtype=torch.long)
    rng = SampleRng(0, tuple(range(10, 10 + len(x))))
    clean = clean_answers(v, x, y, rng)
    attacked = clean.attacked
    none = torch.zeros(int(attacked.sum()), dtype=torch.long)
    crafted = Crafted(x_adv[attacked], {name: rows[attacked] for name, rows in evidence.items()})
    return judge(v, BALL, rng, x, y, clean, crafted, none, none)


def test_every_status_by_hand() -> None:
    x = torch.full((6, 1, 2, 2), 0.45)
    x[1] = 0.6  # clean error
    x[5, 0, 0, 0] = 0.25  # NaN already
    x_adv = x.clone()
    x_adv[0] += 0.09  # fooled
    x_adv[3] += 0.2  # would fool, outside the budget
    x_adv[4, 0, 0, 0] = 0.35
    x[4, 0, 0, 0] = 0.25 + 0.1
    x_adv[4, 0, 0, 0] = 0.25  # NaN inside the budget
    records = verdicts(BrightnessClassifier(), x, x_adv)
    assert [r.status for r in records] == ["fooled", "clean_wrong", "robust", "invalid", "invalid", "invalid"]
    assert [r.violation for r in records] == [False, False, False, True, False, False]
    assert [r.clean for r in records] == [0, 1, 0, 0, 0, -1]
    assert [r.adversarial for r in records] == [1, -1, 0, -1, -1, -1]
    assert [r.index for r in records] == list(range(10, 16))
    # clean forward, verdict, confirmation
    assert [r.forwards for r in records] == [3, 1, 2, 1, 2, 1]
    assert not any(r.fragile for r in records)


def test_a_success_that_another_batch_size_does_not_confirm_is_fragile() -> None:
    class CleanIsZero(DependsOnBatch):
        def forward(self, x: Tensor) -> Tensor:
            shifted = super().forward(x)
            return torch.where((x.flatten(1).amax(1) > 0.5)[:, None], shifted, torch.tensor([[1.0, 0.0]]))

    x = torch.full((4, 1, 2, 2), 0.45)
    records = verdicts(CleanIsZero(), x, x + 0.09)  # four at once fool, pairs do not
    assert [(r.status, r.fragile) for r in records] == [("robust", True)] * 4


def test_a_claim_that_does_not_hold_is_fragile() -> None:
    x = torch.full((2, 1, 2, 2), 0.45)
    claims = torch.tensor([True, False])
    records = verdicts(BrightnessClassifier(), x, x + 0.01, fooled=claims)
    assert [(r.status, r.fragile) for r in records] == [("robust", True), ("robust", False)]


def test_one_image_is_confirmed_in_a_pair() -> None:
    sizes = []

    class Watching(BrightnessClassifier):
        def forward(self, x: Tensor) -> Tensor:
            sizes.append(len(x))
            return super().forward(x)

    x = torch.full((1, 1, 2, 2), 0.45)
    (record,) = verdicts(Watching(), x, x + 0.09)
    assert record.status == "fooled" and sizes == [1, 1, 2] and record.forwards == sum(sizes)


def test_evidence_reaches_the_record() -> None:
    x = torch.full((3, 1, 2, 2), 0.45)
    x[1] = 0.6
    stage, first = torch.tensor([4, 5, 6]), torch.tensor([7, 8, 9])
    records = verdicts(BrightnessClassifier(), x, x, stage=stage, first_fooled=first)
    assert [r.evidence for r in records] == [{"stage": 4}, {}, {"stage": 6}]
    assert [r.first_fooled for r in records] == [7, -1, 9]
    assert SampleRecord.parse(records[0].line()) == records[0]
