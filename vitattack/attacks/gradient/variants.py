"""Gradient attacks by name: factories with the defaults of their papers. Step sizes are multiples of eps.

Annotations say what values an option takes in an attack text. The parameter `ball` is the threat: it comes from the job,
never from the text.
"""

from __future__ import annotations

import math
from typing import Literal

from vitattack.attacks.catalogue import catalogued
from vitattack.attacks.compose import Stages
from vitattack.attacks.gradient.loop import Gradient
from vitattack.attacks.gradient.starts import Clean, Corner, Edge, Gauss, Start, Uniform
from vitattack.attacks.gradient.steps import Cosine, HeavyBall, Linear, Milestones, Momentum, Steepest, StepRule
from vitattack.attacks.losses.base import AnyLoss
from vitattack.attacks.losses.plain import DLR, MIFPE, CrossEntropy, Margin
from vitattack.attacks.losses.remembering import GAMA, LeadThenMargin
from vitattack.core.errors import UsageError
from vitattack.threats.lp import LpBall

Stop = Literal["first_success", "never"]


def usual_step(ball: LpBall, steps: int) -> float:
    """Default step size: a quarter of the budget in linf (2/255 at 8/255); in l2 enough to cross the ball."""
    return 0.25 if ball.norm == "linf" else 2.5 / steps


@catalogued(paper="Goodfellow et al., ICLR 2015", quick="fgsm", draws=False)
def fgsm(ball: LpBall, *, loss: AnyLoss = CrossEntropy(), stop: Stop = "first_success") -> Gradient:
    """Fast gradient sign method: one step of eps from the clean image."""
    return Gradient(ball, 1, Steepest(1.0), loss, Clean(), stop)


@catalogued(paper="Wong et al., ICLR 2020", quick="fgsm_rs")
def fgsm_rs(
    ball: LpBall, *, step: float = 1.25, loss: AnyLoss = CrossEntropy(), stop: Stop = "first_success"
) -> Gradient:
    """FGSM with random start: one step of 1.25 eps from a uniform point of the ball."""
    return Gradient(ball, 1, Steepest(step), loss, Uniform(), stop)


# Settings that papers call PGD: steps, step size (None = `usual_step`), start.
PGD_PRESETS: dict[str, tuple[int, float | None, Start]] = {
    "default": (20, None, Uniform()),
    "madry": (10, 0.25, Uniform()),
    "light2023": (10, 0.15, Uniform()),
    "aas2024": (20, 0.25, Uniform()),
    "bhojanapalli2021": (8, 1 / 8, Clean()),
    "trades": (20, 0.003 / 0.031, Uniform()),
    "trades_train": (10, 0.007 / 0.031, Gauss()),
}


@catalogued(paper="Madry et al., ICLR 2018", quick="pgd(steps=3)")
def pgd(
    ball: LpBall,
    *,
    steps: int | None = None,
    step: float | None = None,
    loss: AnyLoss = CrossEntropy(),
    start: Start | None = None,
    rule: StepRule | None = None,
    stop: Stop = "first_success",
    preset: Literal[
        "default", "madry", "light2023", "aas2024", "bhojanapalli2021", "trades", "trades_train"
    ] = "default",
) -> Gradient:
    """Projected gradient ascent: 20 steps of eps/4 (linf) or 2.5 eps/steps (l2) from a uniform start.

    Presets are the settings of papers; the step size of light2023 is 1.5 eps/steps. Explicit options override the preset.
    `rule` replaces step size and schedule, e.g. rule=heavy_ball(size=2, schedule=cosine).
    """
    preset_steps, preset_step, preset_start = PGD_PRESETS[preset]
    if step is not None and rule is not None:
        raise UsageError("pgd takes step or rule, not both: write rule=sign(size=...)")
    count = preset_steps if steps is None else steps
    if step is None:
        step = 1.5 / count if preset == "light2023" and count > 0 else preset_step
    size = usual_step(ball, max(count, 1)) if step is None else step
    return Gradient(ball, count, rule or Steepest(size), loss, preset_start if start is None else start, stop)


@catalogued(paper="Dong et al., CVPR 2018", quick="mim(steps=3)", draws=False)
def mim(
    ball: LpBall,
    *,
    steps: int = 10,
    step: float | None = None,
    decay: float = 1.0,
    loss: AnyLoss = CrossEntropy(),
    start: Start = Clean(),
    stop: Stop = "first_success",
) -> Gradient:
    """Momentum iterative FGSM: 10 steps of eps/10 along a running sum of l1-normalised gradients."""
    return Gradient(ball, steps, Momentum(1 / max(1, steps) if step is None else step, decay=decay), loss, start, stop)


@catalogued(paper="Carlini & Wagner, S&P 2017, as run inside PGD", quick="cw(steps=3)")
def cw(
    ball: LpBall,
    *,
    steps: int = 100,
    step: float | None = None,
    kappa: float = math.inf,
    start: Start = Uniform(),
    stop: Stop = "first_success",
) -> Gradient:
    """PGD-100 on the logit margin, uncapped unless kappa is given; step size as in pgd."""
    size = usual_step(ball, steps) if step is None else step
    return Gradient(ball, steps, Steepest(size), Margin(kappa), start, stop)


@catalogued(paper="Croce & Hein, ICML 2020, as run inside PGD", quick="dlr(steps=3)")
def dlr(
    ball: LpBall,
    *,
    steps: int = 100,
    step: float | None = None,
    start: Start = Uniform(),
    stop: Stop = "first_success",
) -> Gradient:
    """PGD-100 on the difference-of-logits ratio; step size as in pgd."""
    size = usual_step(ball, steps) if step is None else step
    return Gradient(ball, steps, Steepest(size), DLR(), start, stop)


@catalogued(paper="Sriramanan et al., NeurIPS 2020", quick="gama(steps=4)")
def gama(
    ball: LpBall,
    *,
    steps: int = 100,
    space: Literal["prob", "logit"] = "prob",
    anchor: Literal["start", "clean"] = "start",
    weight: float = 50.0,
    step: float = 2.0,
    start: Start = Corner(),
    stop: Stop = "first_success",
) -> Gradient:
    """Guided adversarial margin attack: start at a corner, steps of 2 eps cut tenfold at 60 % and 85 % of the run."""
    rule = Steepest(step, Milestones())
    return Gradient(ball, steps, rule, GAMA(space, anchor, weight), start, stop)


@catalogued(paper="Yu & Xu, CVPR 2023", quick="mifpe(steps=3)")
def mifpe(
    ball: LpBall,
    *,
    steps: int = 100,
    T: float = 1.0,
    step: float = 2.0,
    start: Start = Edge(),
    stop: Stop = "first_success",
) -> Gradient:
    """Cross-entropy that cannot underflow: momentum 0.75, step size falling linearly from 2 eps, start on the edge."""
    return Gradient(ball, steps, HeavyBall(step, Linear()), MIFPE(T), start, stop)


@catalogued(paper="Xie et al., CVPR 2025", quick="pma(steps=4)")
def pma(ball: LpBall, *, steps: int = 100, step: float = 2.0, stop: Stop = "first_success") -> Stages:
    """Probability margin attack: two runs that maximise one term of the margin, then both; two cosines from 2 eps."""
    return _decomposed(ball, steps, step, stop, "prob")


def _decomposed(ball: LpBall, steps: int, step: float, stop: Stop, space: Literal["prob", "logit"]) -> Stages:
    rule = Steepest(step, Cosine(cycles=2))
    leads: tuple[Literal["true", "wrong"], ...] = ("true", "wrong")
    runs = (Gradient(ball, steps, rule, LeadThenMargin(lead, space), Uniform(), stop) for lead in leads)
    return Stages(tuple(runs), fresh=True)


@catalogued(paper="Ma et al., Machine Learning 2023", quick="md(steps=4)")
def md(ball: LpBall, *, steps: int = 50, step: float = 2.0, stop: Stop = "first_success") -> Stages:
    """Margin decomposition attack: two runs that maximise one term of the logit margin, then both; two cosines from 2 eps."""
    return _decomposed(ball, steps, step, stop, "logit")
