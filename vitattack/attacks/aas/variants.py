"""Attacks through views by name: AAS, its variants and its controls."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from vitattack.attacks.aas.attack import AAS
from vitattack.attacks.aas.climb import LITERAL, Climb, Objective
from vitattack.attacks.aas.scale_search import GivenScales, Per, UniformScales
from vitattack.attacks.base import Attack
from vitattack.attacks.catalogue import catalogued
from vitattack.attacks.double_precision import DoublePrecision
from vitattack.models.attention.features import Tap
from vitattack.threats.lp import LpBall

Mode = Literal["surrogate", "backward_only"]
PAPER = "Adaptive Attention Scaling, CVPR 2024"
PAPER_GRID = (10.0, 1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)


@catalogued(paper=PAPER, quick="aas(pgd(steps=3), restarts=2, steps=2, batch=4, calibration=4)", needs_attention=True)
def aas(
    ball: LpBall,
    inner: Attack,
    *,
    preset: Literal["default", "full"] = "default",
    restarts: int | None = None,
    batches: int | None = None,
    batch: int | None = None,
    calibration: int | None = None,
    rank_steps: int | None = None,
    steps: int = 10,
    objective: Objective = "unit",
    space: Literal["log", "linear"] = "log",
    spread: float = 0.5,
    init_scale: float = 1.0,
    lower: float = 1e-3,
    upper: float = 1.0,
    optimiser: Literal["adam", "raw", "sign"] = "adam",
    step: float = 0.05,
    reference: Literal["original", "previous"] = "original",
    redraw: bool = False,
    update: Literal["after", "inner"] = "after",
    through_clamp: bool = False,
    total_derivative: bool = False,
    reduction: Literal["mean", "sum"] = "mean",
    tap: Tap = "block",
    blocks: tuple[int, ...] | None = None,
    per: Per = "layer",
    include_logits: bool = False,
    keep: int = 2,
    mode: Mode = "surrogate",
    report: bool = True,
) -> AAS:
    """Adaptive attention scaling, robust reading: scales found on calibration images, successes judged on the plain model.

    3 searches of 10 Adam steps in log scale on 32 calibration images, ranked there by PGD-10; the best 2 are used beside
    the plain attack. preset=full searches 5 x 10 batches of 128 and ranks with PGD-20. `objective` is what the scales
    maximise: unit (normalised features), lpips (Eq. 3 of the paper), ce, margin or gama (its Table 2). `blocks=(0, 1)`
    scales only those layers. report=False leaves out the referee's two extra runs.
    """
    full = preset == "full"

    def or_preset(value: int | None, small: int, large: int) -> int:
        return value if value is not None else large if full else small

    search = Climb(
        objective,
        or_preset(restarts, 3, 5),
        or_preset(batches, 1, 10),
        or_preset(batch, 32, 128),
        steps,
        space,
        spread,
        init_scale,
        lower,
        upper,
        optimiser,
        step,
        reference,
        redraw,
        update,
        through_clamp,
        total_derivative,
        reduction,
        tap,
        blocks,
        per,
        include_logits,
    )
    return AAS(ball, inner, search, keep, or_preset(rank_steps, 10, 20), or_preset(calibration, 32, 128), mode, report)


@catalogued(paper=PAPER, quick="aas_literal(pgd(steps=3), batches=2, steps=2, batch=4)", needs_attention=True)
def aas_literal(
    ball: LpBall,
    inner: Attack,
    *,
    batches: int = 4,
    batch: int = 32,
    steps: int = 10,
    blocks: tuple[int, ...] | None = None,
    mode: Mode = "surrogate",
) -> AAS:
    """Algorithm 1 and Eq. 3 of the AAS paper to the letter: raw steps from N(0, 1), redrawn for every minibatch."""
    search = replace(LITERAL, batches=batches, batch=batch, steps=steps, blocks=blocks)
    return AAS(ball, inner, search, keep=1, mode=mode)


@catalogued(
    paper="control",
    quick="random_scales(pgd(steps=3), restarts=2, calibration=4)",
    needs_attention=True,
)
def random_scales(
    ball: LpBall,
    inner: Attack,
    *,
    restarts: int = 3,
    spread: float = 0.5,
    lower: float = 1e-3,
    calibration: int = 32,
    keep: int = 2,
    mode: Mode = "surrogate",
) -> AAS:
    """Control of aas: scales drawn from the same prior and ranked in the same way, without any search."""
    search = Climb(restarts=restarts, spread=spread, lower=lower, steps=0)
    return AAS(ball, inner, search, keep=keep, calibration=calibration, mode=mode)


@catalogued(paper="Table 1 of the AAS paper", quick="scale(0.5, pgd(steps=3))", needs_attention=True)
def scale(
    ball: LpBall, c: float, inner: Attack, *, blocks: tuple[int, ...] | None = None, mode: Mode = "surrogate"
) -> AAS:
    """The plain attack, and the attack with one factor on the attention scores of every layer."""
    return AAS(ball, inner, UniformScales((c,), blocks), keep=1, mode=mode)


@catalogued(
    paper="'+ Scale' of the AAS paper",
    quick="scale_search(pgd(steps=3), calibration=4)",
    needs_attention=True,
)
def scale_search(
    ball: LpBall,
    inner: Attack,
    *,
    grid: tuple[float, ...] = PAPER_GRID,
    calibration: int = 32,
    mode: Mode = "surrogate",
) -> AAS:
    """The best uniform factor of a grid, chosen on calibration images by verdicts of the plain model."""
    return AAS(ball, inner, UniformScales(grid), keep=1, calibration=calibration, mode=mode)


@catalogued(paper=PAPER, quick="given(pgd(steps=3), scales=((0.5, 0.2),))", needs_attention=True)
def given(ball: LpBall, inner: Attack, *, scales: tuple[tuple[float, ...], ...], mode: Mode = "surrogate") -> AAS:
    """Given scales, one tuple per set with a factor per attention layer; --scales reads them from an earlier run."""
    return AAS(ball, inner, GivenScales(scales), keep=len(scales), mode=mode)


@catalogued(paper="control", quick="fp64(pgd(steps=3))")
def fp64(ball: LpBall, inner: Attack) -> DoublePrecision:
    """The inner attack with double-precision gradients, judged by the float32 model: it tells underflow from robustness."""
    return DoublePrecision(ball, inner)
