"""What training minimises, and on which images: `standard`, `fgsm`, `pgd_at`, `trades`, `mart`.

Inner attacks are attacks by their texts, run to the last step whatever they say about stopping.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol, Self, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitattack.attacks.base import Attack, walk
from vitattack.attacks.gradient.loop import Gradient
from vitattack.attacks.gradient.starts import Clean, Gauss, Uniform
from vitattack.attacks.gradient.steps import Steepest
from vitattack.attacks.gradient.variants import fgsm_rs, pgd
from vitattack.attacks.losses import CrossEntropy, KLToClean, Memory, Moment, of_class
from vitattack.core.errors import UsageError
from vitattack.core.registry import Registry
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.threats.lp import LpBall
from vitattack.train.objectives.balls import Unprojected, in_every_ball, to_the_end
from vitattack.train.objectives.shared_forward import answered_once


class Objective(Protocol):
    """A frozen value. `craft` runs in eval mode with frozen parameters, `loss` in train mode with a graph."""

    def craft(self, victim: nn.Module, x: Tensor, y: Tensor, *, rng: SampleRng) -> Tensor:
        """The images to train on, detached."""

    def loss(self, victim: nn.Module, x: Tensor, x_adv: Tensor, y: Tensor) -> Tensor:
        """A mean over the batch; y holds class numbers or shares of classes."""

    def limited(self, eps: float) -> Self:
        """The same objective against a smaller budget, its steps as long as before (warm-up of the budget)."""


@runtime_checkable
class AtOnce(Protocol):
    """An objective that crafts and judges a batch for less than the two cost one by one."""

    def at_once(self, victim: nn.Module, x: Tensor, y: Tensor, *, rng: SampleRng) -> Tensor:
        """`loss` on what `craft` makes, of a victim in train mode whose weights nobody moves in between."""


OBJECTIVES: Registry[Callable[..., Objective]] = Registry("objective", entry_point_group="vitattack.objectives")


@dataclass(frozen=True)
class Standard:
    """Cross-entropy on the images as they are."""

    smoothing: float = 0.0

    def craft(self, victim: nn.Module, x: Tensor, y: Tensor, *, rng: SampleRng) -> Tensor:
        return x

    def loss(self, victim: nn.Module, x: Tensor, x_adv: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(victim(x), y, label_smoothing=self.smoothing)

    def limited(self, eps: float) -> Self:
        return self


@dataclass(frozen=True)
class Crafting:
    """What adversarial objectives share: an inner attack."""

    inner: Attack

    def craft(self, victim: nn.Module, x: Tensor, y: Tensor, *, rng: SampleRng) -> Tensor:
        attack = self.inner
        if y.is_floating_point():
            if isinstance(attack, Gradient) and isinstance(attack.loss, CrossEntropy):
                attack = replace(attack, loss=Shares(dict(zip(rng.index, y, strict=True))))
            y = y.argmax(1)
        assert isinstance(victim, Attackable)
        return attack(victim, x, y, rng=rng).x_adv.detach()

    def limited(self, eps: float) -> Self:
        return replace(self, inner=in_every_ball(self.inner, eps))


@dataclass(frozen=True)
class Shares:
    """Cross-entropy with shares of classes in place of labels, by the index of the sample (MixUp, CutMix)."""

    target: dict[int, Tensor]
    needs_clean = False

    def remember(self, start: Tensor, clean: Tensor | None, y: Tensor, rng: SampleRng) -> Memory:
        return {"target": torch.stack([self.target[i] for i in rng.index])}

    def recall(self, logits: Tensor, y: Tensor, memory: Memory, at: Moment) -> Tensor:
        return F.cross_entropy(logits, memory["target"], reduction="none")


@dataclass(frozen=True)
class Adversarial(Crafting):
    """Cross-entropy on what the inner attack makes of the images (Madry et al., ICLR 2018)."""

    smoothing: float = 0.0

    def loss(self, victim: nn.Module, x: Tensor, x_adv: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(victim(x_adv), y, label_smoothing=self.smoothing)


@dataclass(frozen=True)
class Trades(Crafting):
    """Clean cross-entropy plus `beta` times the KL divergence of the attacked output from the clean one."""

    beta: float = 6.0
    smoothing: float = 0.0

    def loss(self, victim: nn.Module, x: Tensor, x_adv: Tensor, y: Tensor) -> Tensor:
        clean, attacked = victim(x), victim(x_adv)
        natural = F.cross_entropy(clean, y, label_smoothing=self.smoothing)
        apart = F.kl_div(attacked.log_softmax(1), clean.log_softmax(1), reduction="batchmean", log_target=True)
        total: Tensor = natural + self.beta * apart
        return total

    def at_once(self, victim: nn.Module, x: Tensor, y: Tensor, *, rng: SampleRng) -> Tensor:
        """The clean answer is both the target of the attack and a term of the loss."""
        with answered_once(victim, x):
            return self.loss(victim, x, self.craft(victim, x, y, rng=rng), y)


@dataclass(frozen=True)
class Mart(Crafting):
    """A boosted cross-entropy on attacked images, and a KL term that counts by how wrong the clean output is."""

    beta: float = 5.0

    def loss(self, victim: nn.Module, x: Tensor, x_adv: Tensor, y: Tensor) -> Tensor:
        if y.is_floating_point():
            raise UsageError("mart needs class numbers: drop the augmentations that mix labels")
        attacked, log_p = victim(x_adv), victim(x).log_softmax(1)
        p, q = log_p.exp(), attacked.softmax(1)
        wrong = q.scatter(1, y[:, None], 0.0).amax(1)
        boosted = F.cross_entropy(attacked, y) - torch.log(1.0001 - wrong + 1e-12).mean()
        apart = (p * (log_p - torch.log(q + 1e-12))).sum(1)  # p log p would have no gradient where p is 0
        total: Tensor = boosted + self.beta * (apart * (1.0000001 - of_class(p, y))).mean()
        return total


@OBJECTIVES.register("standard")
def standard(ball: LpBall, *, smoothing: float = 0.0) -> Standard:
    """Cross-entropy on the images as they are."""
    return Standard(_smoothing(smoothing))


@OBJECTIVES.register("fgsm")
def fgsm(
    ball: LpBall,
    *,
    kind: Literal["n", "rs"] = "n",
    step: float | None = None,
    noise: float = 2.0,
    smoothing: float = 0.0,
) -> Adversarial:
    """One step of the gradient's sign from noise: `n` never projects (de Jorge et al. 2022), `rs` does (Wong et al. 2020).

    `step` is in multiples of eps, 1 for n and 1.25 for rs; `noise`, for n alone, is the width of its start.
    """
    if kind == "rs":
        if noise != 2.0:
            raise UsageError("fgsm(kind=rs) starts in the ball: noise is for kind=n")
        return Adversarial(fgsm_rs(ball, step=1.25 if step is None else step, stop="never"), _smoothing(smoothing))
    if noise < 0:
        raise UsageError("fgsm(noise=...) is a width of at least 0, in multiples of eps")
    rule = Steepest(1.0 if step is None else step)
    free = Unprojected(ball.norm, ball.eps, noise)
    return Adversarial(Gradient(free, 1, rule, CrossEntropy(), Uniform(), "never"), _smoothing(smoothing))


@OBJECTIVES.register("pgd_at")
def pgd_at(ball: LpBall, *, inner: Attack | None = None, smoothing: float = 0.0) -> Adversarial:
    """Cross-entropy on attacked images; the inner attack is pgd(steps=10, step=0.25) unless one is given."""
    return Adversarial(to_the_end(inner or pgd(ball, steps=10, step=0.25)), _smoothing(smoothing))


@OBJECTIVES.register("trades")
def trades(ball: LpBall, *, beta: float = 6.0, inner: Attack | None = None, smoothing: float = 0.0) -> Trades:
    """Clean cross-entropy plus beta KL(clean, attacked), both with gradient (Zhang et al., ICML 2019).

    The inner attack is pgd(loss=kl_to, preset=trades_train): 10 steps of 0.007/0.031 eps from a small normal step off x.
    """
    inner = to_the_end(inner or pgd(ball, loss=KLToClean(), preset="trades_train"))
    for run in _runs(inner):
        if isinstance(run.loss, KLToClean) and isinstance(run.start, Clean):
            raise UsageError(
                "trades started exactly at x has no gradient, since KL is 0 and flat there: start=gauss or start=uniform"
            )
    if beta < 0:
        raise UsageError("trades(beta=...) weighs the KL term by at least 0")
    return Trades(inner, beta, _smoothing(smoothing))


@OBJECTIVES.register("mart")
def mart(ball: LpBall, *, beta: float = 5.0, inner: Attack | None = None) -> Mart:
    """Misclassification-aware training (Wang et al., ICLR 2020).

    The inner attack is pgd(preset=trades_train): cross-entropy, 10 steps of 0.007/0.031 eps from a small normal step.
    """
    if beta < 0:
        raise UsageError("mart(beta=...) weighs the KL term by at least 0")
    return Mart(to_the_end(inner or pgd(ball, start=Gauss(), preset="trades_train")), beta)


def _smoothing(share: float) -> float:
    if not 0 <= share < 1:
        raise UsageError(f"smoothing is a share from 0 to below 1, not {share:g}")
    return share


def _runs(attack: Attack) -> list[Gradient]:
    """The gradient loops in an attack."""
    return [part for part in walk(attack) if isinstance(part, Gradient)]
