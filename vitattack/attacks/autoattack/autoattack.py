"""APGD with its variants, and AutoAttack composed of its four stages."""

from __future__ import annotations

from typing import Literal

from vitattack.attacks.base import Attack
from vitattack.attacks.black_box.square import square
from vitattack.attacks.catalogue import LP_AND_L1, catalogued
from vitattack.attacks.compose import Stages, restarts
from vitattack.attacks.expectation import Expectation
from vitattack.attacks.gradient.apgd import AutoStep
from vitattack.attacks.gradient.loop import Gradient
from vitattack.attacks.gradient.sparse_apgd import SHRINKING, SparseAutoStep
from vitattack.attacks.gradient.starts import Edge, Start
from vitattack.attacks.gradient.targets import Aim, Targets, Which
from vitattack.attacks.losses.base import AnyLoss
from vitattack.attacks.losses.plain import DLR, CrossEntropy
from vitattack.attacks.minimum_norm.fab import fab, fab_t
from vitattack.core.errors import UsageError
from vitattack.threats.lp import LpBall

Stop = Literal["first_success", "never"]
CROCE = "Croce & Hein, ICML 2020; in l1 ICML 2021"


@catalogued(paper=CROCE, quick="apgd(steps=5)", threats=LP_AND_L1)
def apgd(
    ball: LpBall,
    *,
    steps: int = 100,
    loss: AnyLoss = CrossEntropy(),
    start: Start = Edge(),
    size: float | None = None,
    rho: float | None = None,
    stop: Stop = "first_success",
) -> Gradient:
    """Auto-PGD: 100 steps from 2 eps, halved where progress stalls, with momentum 0.75 and returns to the best point.

    loss=ce is AutoAttack's apgd-ce, loss=dlr its apgd-dlr. Below about 30 steps the checkpoints are too close together. In l1
    steps change few features, as many as the best point asks for; they begin at 1 eps, 30 % of them inside three budgets, 30 %
    inside two.
    """
    if ball.norm == "l1":
        if rho is not None:
            raise UsageError("rho is for linf and l2: apgd in l1 takes size alone")
        if steps < 1:
            raise UsageError(f"{steps} steps cannot move an image: use at least 1")
        moves = len(SHRINKING) - 1  # from ball to ball, beside the steps
        return Gradient(ball, steps + moves, SparseAutoStep(1.0 if size is None else size), loss, start, stop)
    rule = AutoStep(2.0 if size is None else size, 0.75 if rho is None else rho)
    return Gradient(ball, steps, rule, loss, start, stop)


@catalogued(paper=CROCE, quick="apgd_ce(steps=5)", threats=LP_AND_L1)
def apgd_ce(ball: LpBall, *, steps: int = 100, stop: Stop = "first_success") -> Gradient:
    """AutoAttack's first stage: APGD on cross-entropy."""
    return apgd(ball, steps=steps, stop=stop)


@catalogued(paper=CROCE, quick="apgd_dlr(steps=5)", threats=LP_AND_L1)
def apgd_dlr(ball: LpBall, *, steps: int = 100, stop: Stop = "first_success") -> Gradient:
    """APGD on the difference-of-logits ratio: a stage of AutoAttack's versions plus and rand."""
    return apgd(ball, steps=steps, loss=DLR(), stop=stop)


@catalogued(paper=CROCE, quick="apgd_t(steps=5, k=2)", threats=LP_AND_L1)
def apgd_t(ball: LpBall, *, steps: int = 100, k: int = 9, loss: Aim = "dlr", stop: Stop = "first_success") -> Targets:
    """AutoAttack's second stage: APGD towards each of the 9 likeliest wrong classes, on the targeted DLR loss.

    AutoAttack in l1 has 5 targets: k=5.
    """
    return Targets(apgd(ball, steps=steps, stop=stop), k, "top", loss)


# Number of targets and of steps towards each.
MM_PRESETS = {"mm3": (3, 20), "mm9": (9, 20), "plus": (9, 100)}


@catalogued(paper="Gao et al., ICML 2022", quick="mm(k=2, steps=5)", threats=LP_AND_L1)
def mm(
    ball: LpBall, *, k: int | None = None, steps: int | None = None, preset: Literal["mm3", "mm9", "plus"] = "mm3"
) -> Targets:
    """Minimum-margin attack: APGD on the plain margin towards the k likeliest wrong classes, 3 x 20 steps.

    preset=mm9 has 9 targets, preset=plus 9 targets with 100 steps each.
    """
    preset_k, preset_steps = MM_PRESETS[preset]
    inner = apgd(ball, steps=preset_steps if steps is None else steps)
    return Targets(inner, preset_k if k is None else k, "top", "margin")


@catalogued(paper="common practice", quick="targets(pgd(steps=3), k=2)", threats=LP_AND_L1)
def targets(inner: Attack, *, k: int = 9, which: Which = "top", loss: Aim = "margin") -> Targets:
    """The inner attack towards k wrong classes in turn: the likeliest, the runner-up only, the least likely or random ones."""
    return Targets(inner, k, which, loss)


@catalogued(paper="Athalye et al., ICML 2018", quick="eot(pgd(steps=2), n=2)", threats=LP_AND_L1)
def eot(inner: Attack, *, n: int = 20) -> Expectation:
    """Expectation over transformation, for random models: the inner attack on losses averaged over n forwards per step."""
    return Expectation(inner, n)


# Stages of each version, in AutoAttack's order.
VERSIONS = {
    "standard": ("apgd_ce", "apgd_t", "fab_t", "square"),
    "plus": ("apgd_ce", "apgd_dlr", "fab", "square", "apgd_t", "fab_t"),
    "rand": ("apgd_ce", "apgd_dlr"),
}


@catalogued(paper=CROCE, quick="autoattack(steps=3, queries=5)", threats=LP_AND_L1)
def autoattack(
    ball: LpBall,
    *,
    version: Literal["standard", "plus", "rand"] = "standard",
    steps: int = 100,
    queries: int = 5000,
) -> Stages:
    """AutoAttack by its own protocol, stage by stage; fooled samples leave within a stage, not only after it.

    standard: apgd_ce, apgd_t and fab_t with 9 targets, square with 5,000 queries; in l1 5 restarts of apgd_ce and 5 targets
    in apgd_t. plus: 5 restarts of apgd_ce, apgd_dlr and fab, then square, apgd_t, fab_t. rand: apgd_ce and apgd_dlr on
    losses averaged over 20 forwards. With too few classes for DLR the margin takes its place.
    """
    stages: dict[str, Attack]
    dlr = apgd(ball, steps=steps, loss=DLR(fallback=True))
    if version == "rand":
        stages = {"apgd_ce": eot(apgd_ce(ball, steps=steps)), "apgd_dlr": eot(dlr)}
    else:
        runs = 5 if version == "plus" else 1
        in_l1 = ball.norm == "l1" and version == "standard"
        stages = {
            "apgd_ce": restarts(5 if in_l1 else runs, apgd_ce(ball, steps=steps)),
            "apgd_dlr": restarts(runs, dlr),
            "apgd_t": apgd_t(ball, steps=steps, k=5 if in_l1 else 9),
            "fab": fab(ball, steps=steps, restarts=runs),
            "fab_t": fab_t(ball, steps=steps),
            "square": square(ball, queries=queries),
        }
    return Stages(tuple(stages[name] for name in VERSIONS[version]), names=VERSIONS[version])
