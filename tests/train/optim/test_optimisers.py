"""Steps of the optimisers and learning rates against values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tests.conftest import tiny_vit
from vitattack.core.errors import UsageError
from vitattack.models.attention.baked_scales import install_scales, scales_of
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.train.optim.optimisers import AdamW, Lion, Sgd
from vitattack.train.optim.parameter_groups import parameter_groups
from vitattack.train.optim.rate_schedules import ConstantRate, CosineRate, OneCycleRate, StepDecay


def one_weight(value: float) -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def step(model: nn.Linear, optimiser: torch.optim.Optimizer, grad: float) -> float:
    model.weight.grad = torch.tensor([[grad]])
    optimiser.step()
    return float(model.weight.detach())


def test_lion_by_hand() -> None:
    model = one_weight(2.0)
    optimiser = Lion(lr=0.1, decay=0.5, betas=(0.9, 0.99))(model)
    # m = 0: the sign of 0.1 g = +; w = 2 (1 - 0.05) - 0.1 = 1.8; m = 0.01 * 3 = 0.03
    assert step(model, optimiser, 3.0) == pytest.approx(1.8)
    # 0.9 * 0.03 - 0.1 * 0.2 = 0.007 > 0, although the gradient is negative; w = 1.8 * 0.95 - 0.1; m = 0.0297 - 0.002
    assert step(model, optimiser, -0.2) == pytest.approx(1.61)
    # 0.9 * 0.0277 - 0.1 * 0.3 = -0.00507 < 0: up
    assert step(model, optimiser, -0.3) == pytest.approx(1.61 * 0.95 + 0.1)


def test_adamw_and_sgd_by_hand() -> None:
    model = one_weight(2.0)
    # the first step of Adam is lr times the sign of the gradient; decay multiplies the weight by 1 - lr decay
    assert step(model, AdamW(lr=0.1, decay=0.5)(model), 7.0) == pytest.approx(2.0 * 0.95 - 0.1)
    model = one_weight(2.0)
    optimiser = Sgd(lr=0.1, decay=0.5, momentum=0.9)(model)
    assert step(model, optimiser, 1.0) == pytest.approx(2.0 - 0.1 * (1.0 + 1.0))
    assert step(model, optimiser, 0.0) == pytest.approx(1.8 - 0.1 * (0.9 * 2.0 + 0.5 * 1.8))


def test_vectors_and_exempt_tensors_do_not_decay() -> None:
    victim = tiny_vit()
    model = victim.model
    decays = {id(p): g["weight_decay"] for g in parameter_groups(victim, 1e-3, 0.1) for p in g["params"]}
    for name, parameter in model.named_parameters():
        free = parameter.ndim <= 1 or name == "pos_embed"
        assert decays[id(parameter)] == (0.0 if free else 0.1), name


def test_layers_learn_slower_the_deeper_they_lie() -> None:
    model = tiny_vit().model  # stem, 2 blocks, norm, head
    peaks = {id(p): g["peak"] for g in parameter_groups(model, 1.0, 0.1, layers=0.5) for p in g["params"]}
    named = {name: peaks[id(p)] for name, p in model.named_parameters()}
    assert len(peaks) == len(list(model.parameters()))
    assert named["head.weight"] == 1.0
    assert named["blocks.0.attn.qkv.weight"] == 0.5 * named["blocks.1.attn.qkv.weight"]
    assert named["patch_embed.convs.0.weight"] == named["pos_embed"] == 0.5 * named["blocks.0.attn.qkv.weight"]
    optimiser = AdamW(lr=1.0, layers=0.5)(model)
    assert {g["lr"] for g in optimiser.param_groups} == set(named.values())


def test_attention_scales_that_learn_do_not_decay_and_flat_models_have_no_layers() -> None:
    victim = tiny_vit()
    install_scales(victim.model, torch.ones(2, 2), attention_layers(victim.model, victim.grey()), learn=True)
    (group,) = (
        g for g in parameter_groups(victim, 1e-3, 0.1) if any(p is scales_of(victim.model) for p in g["params"])
    )
    assert group["weight_decay"] == 0
    with pytest.raises(UsageError, match="how deep .* lie: use layers=1"):
        parameter_groups(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), 1.0, 0.1, layers=0.5)


def test_cosine_by_hand() -> None:
    rate = CosineRate(warmup=0.1, start=0.04, floor=0.1, cooldown=0.1)
    assert rate(0, 100) == pytest.approx(0.04)
    assert rate(5, 100) == pytest.approx(0.52)
    assert rate(10, 100) == pytest.approx(1.0)
    assert rate(50, 100) == pytest.approx(0.55)
    assert rate(30, 100) == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 4)))
    assert rate(90, 100) == rate(99, 100) == pytest.approx(0.1)
    assert CosineRate()(0, 10) == 1.0
    assert ConstantRate()(0, 10) == 1.0
    assert ConstantRate(warmup=0.5)(0, 10) == 0.0
    assert ConstantRate(warmup=0.5)(5, 10) == 1.0


def test_one_cycle_is_torchs_and_right_by_hand() -> None:
    rate = OneCycleRate()
    # peak at step 0.3 * 100 - 1 = 29, half the way up at 14.5, the end at 99
    assert rate(0, 100) == pytest.approx(1 / 25)
    assert rate(29, 100) == pytest.approx(1.0)
    assert rate(64, 100) == pytest.approx((1 + 1 / 25e4) / 2)
    assert rate(99, 100) == pytest.approx(1 / 25e4)
    for total, warmup in ((100, 0.3), (80, 0.025), (37, 0.2)):
        optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        theirs = torch.optim.lr_scheduler.OneCycleLR(optimiser, 1.0, total_steps=total, pct_start=warmup)
        rate = OneCycleRate(warmup=warmup)
        for number in range(total):
            if number:
                optimiser.step()
                theirs.step()
            assert rate(number, total) == pytest.approx(optimiser.param_groups[0]["lr"], abs=1e-12)


def test_drops_by_hand() -> None:
    rate = StepDecay(at=(35 / 40, 38 / 40), factor=0.1)
    assert [rate(epoch * 7, 280) for epoch in (0, 34, 35, 37, 38, 39)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


@pytest.mark.parametrize(
    "make",
    [
        lambda: AdamW(lr=0.0),
        lambda: AdamW(lr=math.nan),
        lambda: Sgd(lr=1e39),
        lambda: Lion(decay=-1.0),
        lambda: Lion(betas=(0.9,)),
        lambda: Lion(betas=(0.9, 1.0)),
        lambda: Sgd(layers=0.0),
        lambda: Sgd(momentum=0.0, nesterov=True),
        lambda: CosineRate(warmup=5.0),
        lambda: CosineRate(warmup=0.6, cooldown=0.6),
        lambda: OneCycleRate(div=0.0),
        lambda: StepDecay(at=(0.9, 0.1)),
    ],
)
def test_settings_without_sense_are_refused(make) -> None:
    with pytest.raises(UsageError):
        make()
