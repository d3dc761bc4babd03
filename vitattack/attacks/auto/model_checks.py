"""Probes of a model on the first images of a block: saturation of its attention, and whether its gradients can be trusted."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vitattack.attacks.gradient.fidelity import FORWARDS, gradient_fidelity
from vitattack.attacks.gradient.starts import Corner
from vitattack.attacks.gradient.steps import HeavyBall
from vitattack.attacks.losses.base import logit_margin
from vitattack.attacks.price import PassesPerImage
from vitattack.core.rng import SampleRng
from vitattack.models.attention.attention_map import AttentionMap
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.attention.saturation import SATURATED_GAP, SATURATED_ROWS
from vitattack.models.attention.tap import AttentionTap, Seen
from vitattack.models.base import Attackable
from vitattack.models.lost_gradients import NoGradient, find_lost_gradient, lost_gradients_named
from vitattack.models.victim import Victim, frozen
from vitattack.models.views import UnsuitedPrecision
from vitattack.threats.lp import LpBall

# If gradient signs agree between precisions on a smaller share of pixels, the search stays in float32.
AGREEMENT = 0.99
STEPS = 5  # gradients are compared at the start and after this many steps
PASSES = 2 * (STEPS + 1 + 2)  # forwards and backwards per image, in both precisions


def attention(victim: Victim, x: Tensor) -> tuple[AttentionMap, bool]:
    """Find the attention layers, and whether the softmax of any saturates on these images."""
    layers = attention_layers(victim, x)
    saturated_shares: list[float] = []

    def see(seen: Seen) -> None:
        scores, masked = seen.scores(torch.float32), seen.masked()
        scores = scores if masked is None else scores.masked_fill(masked, -torch.inf)
        top = scores.topk(2, dim=-1).values
        saturated_shares.append(float(((top[..., 0] - top[..., 1]) > SATURATED_GAP).float().mean()))

    if len(layers):
        with frozen(victim), torch.no_grad(), AttentionTap(layers, observe=see):
            victim(x)
    return layers, any(share > SATURATED_ROWS for share in saturated_shares)


def agreement(victim: Attackable, other: Attackable, ball: LpBall, x: Tensor, y: Tensor, rng: SampleRng) -> float:
    """Share of pixels whose gradients have the same sign in both models, at a corner or STEPS steps later if worse.

    Zero if the other model cannot run in its precision.
    """
    rule = HeavyBall(1.0)
    x_adv, state, shares = Corner()(ball, x, victim=victim, rng=rng), rule.init(x, STEPS), []
    with frozen(victim), torch.enable_grad():
        for t in range(STEPS + 1):
            loss, grad = _gradient(victim, x_adv, y)
            if t in (0, STEPS):
                nonzero = grad != 0
                try:
                    _, others = _gradient(other, x_adv, y)
                except UnsuitedPrecision:
                    return 0.0
                same = (grad.sign() == others.sign()) & nonzero
                shares.append(int(same.sum()) / max(1, int(nonzero.sum())))
            x_adv, state = rule.step(x, x_adv, grad, loss, state, ball)
    return min(shares)


def _gradient(model: Attackable, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    loss = logit_margin(model(x), y)
    (grad,) = torch.autograd.grad(loss.sum(), x)
    return loss.detach(), grad.nan_to_num(0.0, 0.0, 0.0)


class Trust(NamedTuple):
    """How far the gradients of a model can be trusted, and whether they are `lost` altogether."""

    fidelity: float
    lost: bool


FIDELITY_PASSES = PassesPerImage(FORWARDS, 1)


def trust(victim: Victim, ball: LpBall, x: Tensor, y: Tensor, rng: SampleRng) -> Trust:
    """Measure the gradient fidelity of half the images; a model without a gradient has none."""
    try:
        with frozen(victim), lost_gradients_named(victim, x[:1]):
            fidelity = float(gradient_fidelity(victim, ball, x, y, rng).median())
    except NoGradient:
        return Trust(0.0, True)
    lost = find_lost_gradient(victim, x[:1]) if fidelity == 0 else None
    return Trust(fidelity, lost is not None and lost.cause != "zero")
