"""Losses against their formulas and against each other."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from vitattack.attacks.losses.base import LOSSES, Moment, is_correct, is_fooled, loss_memory, loss_value, needs_clean
from vitattack.attacks.losses.plain import DLR, MIFPE
from vitattack.attacks.losses.remembering import GAMA
from vitattack.attacks.losses.targeted import TargetedDLR, TargetedMargin
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng

LOGITS = torch.tensor([[3.0, 1.0, 2.5, -4.0, 0.5], [0.0, 7.0, 6.0, 1.0, 2.0]], dtype=torch.float64)
Y = torch.tensor([0, 2])
RNG = SampleRng(0, (0, 1))


def value(name: str, logits: torch.Tensor = LOGITS, t: int = 50, **options: object) -> list[float]:
    loss = LOSSES[name](**options)  # type: ignore[call-arg]
    memory = loss_memory(loss, LOGITS, LOGITS, Y, RNG)
    return loss_value(loss, logits, Y, memory, Moment(t, 100)).tolist()


def test_values_by_hand() -> None:
    p = LOGITS.softmax(1)
    assert value("margin") == pytest.approx([-0.5, 1.0])
    assert value("margin", kappa=0.25) == pytest.approx([-0.5, 0.25])
    assert value("ce") == pytest.approx([-math.log(p[0, 0]), -math.log(p[1, 2])])
    assert value("dlr") == pytest.approx([-0.5 / (3.0 - 1.0), 1.0 / (7.0 - 2.0)])
    assert value("pm") == pytest.approx([float(p[0, 2] - p[0, 0]), float(p[1, 1] - p[1, 2])])
    assert value("dlr_targeted") == pytest.approx([-0.5 / (3.0 - (1.0 + 0.5) / 2), 1.0 / (7.0 - (2.0 + 1.0) / 2)])
    assert value("margin_targeted", rank=-1) == pytest.approx([-7.0, -6.0])
    assert value("ce_targeted", rank=2) == pytest.approx([math.log(p[0, 1]), math.log(p[1, 4])])
    assert value("mifpe", T=2.0) == pytest.approx(
        [float(F.cross_entropy(LOGITS[:1] * 4, Y[:1])), float(F.cross_entropy(LOGITS[1:] * 2, Y[1:]))]
    )


def test_kl_to_the_clean_output() -> None:
    assert value("kl_to") == pytest.approx([0, 0])
    moved = LOGITS + torch.tensor([[1.0, 0, 0, 0, 0]])
    p, q = LOGITS.softmax(1), moved.softmax(1)
    assert value("kl_to", moved) == pytest.approx((p * (p / q).log()).sum(1).tolist())


def test_gama_pulls_for_a_quarter_of_the_run() -> None:
    gama = GAMA()
    assert [gama.weight_at(Moment(t, 100)) for t in (0, 10, 25, 26, 99)] == pytest.approx([50, 30, 0, 0, 0])
    assert [gama.weight_at(Moment(t, 20)) for t in (0, 1, 5, 6)] == pytest.approx([50, 40, 0, 0])
    moved = LOGITS * 0.5
    distance = (moved.softmax(1) - LOGITS.softmax(1)).square().sum(1)
    margin = torch.tensor(value("pm", moved), dtype=torch.float64)
    assert value("gama", moved, t=10) == pytest.approx((margin + 30 * distance).tolist())
    assert value("gama", moved, t=60) == pytest.approx(margin.tolist())


def test_pma_leads_with_one_term() -> None:
    p = LOGITS.softmax(1)
    assert value("pm_lead", t=0) == pytest.approx([float(p[0, 0]), float(p[1, 2])])
    assert value("pm_lead", t=3) == pytest.approx([-float(p[0, 0]), -float(p[1, 2])])
    assert value("pm_lead", t=3, lead="wrong") == pytest.approx([float(p[0, 2]), float(p[1, 1])])
    assert value("pm_lead", t=50) == pytest.approx(value("pm"))


@pytest.mark.parametrize("gap", [17.0, 60.0, 150.0])
def test_what_underflow_takes_from_cross_entropy_and_not_from_others(gap: float) -> None:
    """In float32 the true class loses its gradient at a gap of 16.64, everything is zero at 104; margins do not care."""

    def gradient(name: str) -> torch.Tensor:
        logits = torch.tensor([[gap, 0.0, -1.0, -2.0]], requires_grad=True)
        y = torch.tensor([0])
        loss = LOSSES[name]()
        (grad,) = torch.autograd.grad(loss_value(loss, logits, y, {}, Moment(0, 1)).sum(), logits)
        return grad[0]

    assert float(gradient("ce")[0]) == 0.0
    assert bool((gradient("ce") == 0).all()) == (gap > 104)
    for name in ("margin", "dlr", "mifpe"):
        assert float(gradient(name)[0]) < 0 < float(gradient(name)[1])


def test_dlr_is_free_of_scale_and_shift() -> None:
    for name in ("dlr", "dlr_targeted"):
        assert value(name, LOGITS * 1e3 + 7) == pytest.approx(value(name))


def test_too_few_classes_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 3 classes.*use margin"):
        DLR()(torch.zeros(1, 2), torch.tensor([0]))
    with pytest.raises(UsageError, match="at least 4 classes"):
        TargetedDLR().towards(torch.zeros(1, 3), torch.tensor([0]), torch.tensor([1]))
    with pytest.raises(UsageError, match="rank 9 of 4 wrong classes"):
        TargetedMargin(9).remember(LOGITS, LOGITS, Y, RNG)
    with pytest.raises(UsageError, match="rank 0"):
        TargetedMargin(0)


def test_targets_are_never_the_label() -> None:
    for rank in (1, 2, 3, 4, -1, -4):
        target = TargetedMargin(rank).remember(LOGITS, LOGITS, Y, RNG)["target"]
        assert not bool((target == Y).any())


def test_an_output_that_is_not_finite_is_neither_correct_nor_fooled() -> None:
    logits = torch.tensor([[float("nan"), 0.0], [1.0, float("inf")], [0.0, 1.0], [1.0, 0.0], [1.0, -float("inf")]])
    y = torch.tensor([0, 0, 0, 0, 0])
    assert is_correct(logits, y).tolist() == [False, False, False, True, False]
    assert is_fooled(logits, y).tolist() == [False, False, True, False, False]


def test_gama_anchors_where_it_is_told_to() -> None:
    moved, clean, y = LOGITS * 0.5, LOGITS.flip(1), Y
    for anchor, reference in (("start", LOGITS), ("clean", clean)):
        gama = GAMA(anchor=anchor)  # type: ignore[arg-type]
        assert needs_clean(gama) == (anchor == "clean")
        memory = loss_memory(gama, LOGITS, clean if anchor == "clean" else None, y, RNG)
        assert torch.equal(memory["anchor"], reference.softmax(1))
        far = loss_value(gama, moved, y, memory, Moment(0, 100)) - loss_value(gama, moved, y, memory, Moment(99, 100))
        assert torch.allclose(far, 50 * (moved.softmax(1) - reference.softmax(1)).square().sum(1))


def test_targets_come_from_the_clean_output() -> None:
    loss = TargetedMargin(1)
    assert loss.remember(LOGITS.flip(1), LOGITS, Y, RNG)["target"].tolist() == [2, 1]


def test_few_classes_are_refused_or_fall_back() -> None:
    two, y = torch.tensor([[1.0, 3.0]]), torch.zeros(1, dtype=torch.long)
    with pytest.raises(UsageError, match="'dlr' needs at least 3 classes, the model has 2"):
        DLR()(two, y)
    assert DLR(fallback=True)(two, y).tolist() == [2.0]
    assert DLR(fallback=True)(LOGITS, Y).tolist() == DLR()(LOGITS, Y).tolist()
    with pytest.raises(UsageError, match="'mifpe' needs at least 2 classes, the model has 1"):
        MIFPE()(two[:, :1], y)
