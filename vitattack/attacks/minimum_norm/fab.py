"""FAB: minimum-norm adversarial examples by projection onto linearised decision boundaries (Croce & Hein, ICML 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitattack.attacks.base import Crafted, InBall, Traits
from vitattack.attacks.catalogue import LP_AND_L1, catalogued
from vitattack.attacks.losses.base import AnyLoss, fools, of_class, wrong_classes
from vitattack.attacks.minimum_norm.best_so_far import BestSoFar, Stop
from vitattack.attacks.minimum_norm.projection import onto_plane
from vitattack.attacks.price import Price, PriceQuery
from vitattack.core.errors import UsageError
from vitattack.core.progress import in_stage
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.models.victim import frozen
from vitattack.threats.base import per_row
from vitattack.threats.lp import LpBall, l2_norms

DUAL = {"linf": "l1", "l2": "l2", "l1": "linf"}  # the norm of a gradient by which a gap is divided for its distance


@dataclass(frozen=True)
class FAB(InBall):
    """Each step moves to a point between the projections of iterate and image onto the linearised boundary, a bit beyond.

    An iterate that fools the victim is pulled back towards the image before the next step. With `targets` there is one
    run towards each of the k likeliest wrong classes (one gradient per step); without, each step goes to the nearest
    boundary (a gradient per wrong class). The logits of a new point give its verdict and the next linearisation, so a
    step is one forward and one backward. A point to be pulled back needs a forward of its own for its verdict; with
    stop="first_success" that is spent only within the budget, where verdicts count: outside, a point that follows a
    success is assumed to be one as well. stop="never" asks for all verdicts, like the released code. First runs start
    at the image, restarts at random points up to eps/2 away. `BestSoFar` keeps the successes.
    """

    ball: LpBall
    steps: int = 100
    targets: int | None = 9
    restarts: int = 1
    alpha_max: float = 0.1
    eta: float = 1.05
    beta: float = 0.9
    stop: Stop = "first_success"

    def __post_init__(self) -> None:
        if self.steps < 1 or self.restarts < 1 or (self.targets is not None and self.targets < 1):
            raise UsageError("fab needs at least 1 step, 1 restart and 1 target")
        if not (0 <= self.alpha_max <= 1 and 0 < self.beta <= 1 and 1 <= self.eta <= 10):
            raise UsageError("fab takes an alpha_max from 0 to 1, a beta above 0 and up to 1, and an eta from 1 to 10")

    @property
    def traits(self) -> Traits:
        return Traits(near_boundary=True)

    def price(self, query: PriceQuery) -> Price:
        """Price of a verdict on the image and of runs that cross the boundary, beyond the budget, with their first step.

        The first point there is linearised twice, as it is and pulled back. Points after it count as successes without a
        verdict; with stop="never" each has one, at a forward of its own.
        """
        wrong = query.classes - 1
        goals, gradients = (1, wrong) if self.targets is None else (min(self.targets, wrong), 1)
        runs = goals * self.restarts
        linearised = self.steps + (self.steps > 1)
        forwards = self.steps + query.look
        if self.stop == "never":
            forwards = self.steps * (1 + query.look)
        return Price().more(query.look + runs * forwards, runs * linearised * gradients)

    def without_early_stop(self) -> FAB:
        return replace(self, stop="never")

    def with_loss(self, loss: AnyLoss) -> FAB:
        raise UsageError("fab follows differences of logits and has no loss to replace: use pgd(loss=...)")

    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        best = BestSoFar(self.ball, x, self.stop)
        if len(x):
            with frozen(victim), torch.no_grad():
                self._runs(victim, x, y, rng, best)
        return best.crafted()

    def _runs(self, victim: Attackable, x: Tensor, y: Tensor, rng: SampleRng, best: BestSoFar) -> None:
        all_rows = torch.arange(len(x), device=x.device)
        logits = _verdicts(victim, all_rows, x, y, best, 0)[1]
        wrong = logits.shape[1] - 1
        ranked = wrong_classes(logits, y)
        goals = [ranked] if self.targets is None else [ranked[:, k : k + 1] for k in range(min(self.targets, wrong))]
        for number in range(len(goals) * self.restarts):
            target, restart = divmod(number, self.restarts)
            active = (~best.done).nonzero().flatten()
            if len(active) == 0:
                break
            start = x[active]
            if restart:
                start = self._random(start, rng[active].child("start", number))
            self._run(victim, y, goals[target], start, active, best, number * self.steps)

    def _random(self, x: Tensor, rng: SampleRng) -> Tensor:
        """Random points at a distance of eps/2, clamped to the box."""
        noise = rng.uniform(x, -1.0, 1.0) if self.ball.norm == "linf" else rng.normal(x)
        length = self._norm(noise.flatten(1)).clamp_min(1e-12)
        return (x + self.ball.eps / 2 * noise / per_row(length, x)).clamp(0, 1)

    def _run(
        self, victim: Attackable, y: Tensor, goals: Tensor, point: Tensor, active: Tensor, best: BestSoFar, before: int
    ) -> None:
        """One run from `point` towards the nearest boundary to the classes `goals` (all rows, K)."""
        spent = best.evidence
        # Samples whose last point fooled the victim: most likely the next one does too and will be pulled back, so its
        # verdict comes before anything is spent on linearising there.
        suspect = torch.zeros_like(active, dtype=torch.bool)
        for t in in_stage("steps", range(self.steps + 1)):
            # the start needs no verdict: the image has one, and a random point is no candidate
            known = suspect | (t in (0, self.steps))
            fooled = suspect & self._beyond(best.x[active], point)
            ask = known & ~fooled
            if t and bool(ask.any()):
                rows = active[ask]
                fooled[ask] = _verdicts(victim, rows, point[ask], y[rows], best, before + t)[0]
                keep = ~best.done[active]
                active, point, known, fooled = (each[keep] for each in (active, point, known, fooled))
            if t == self.steps or len(active) == 0:
                return
            origin = best.x[active]
            point = torch.where(per_row(fooled, point), self._pulled_back(origin, point), point)
            linearised = _Linearised(victim, point, active, y, goals, spent)
            fooled_here = torch.zeros_like(known)
            if not bool(known.all()):
                rows, logits = active[~known], linearised.logits.detach()[~known]
                spent["forwards"][rows] += victim.verdict_forwards
                verdict = victim.verdict(point[~known], logits)
                fooled_here[~known] = fools(victim, point[~known], verdict, y[rows])
                best.note(active, point, fooled_here, before + t)
            gap, slope = linearised.boundary(~fooled_here, self.ball.norm)
            pulled = fooled_here & ~best.done[active]
            if bool(pulled.any()):
                point = torch.where(per_row(pulled, point), self._pulled_back(origin, point), point)
                pulled_back = _Linearised(victim, point[pulled], active[pulled], y, goals, spent)
                gap[pulled], slope[pulled] = pulled_back.boundary(
                    torch.ones_like(pulled_back.active, dtype=torch.bool), self.ball.norm
                )
            suspect = fooled | fooled_here
            keep = ~best.done[active]
            if not bool(keep.all()):
                active, suspect, origin, point, gap, slope = (
                    each[keep] for each in (active, suspect, origin, point, gap, slope)
                )
            point = self._step(origin, point, gap, slope)

    def _beyond(self, origin: Tensor, point: Tensor) -> Tensor:
        """(B,) points whose verdict does not count: those outside the budget, unless distances are wanted."""
        if self.stop == "never":
            return torch.zeros(len(point), dtype=torch.bool, device=point.device)
        return self._norm((point - origin).flatten(1)) > self.ball.eps

    def _pulled_back(self, origin: Tensor, point: Tensor) -> Tensor:
        return origin + self.beta * (point - origin)

    def _step(self, origin: Tensor, point: Tensor, gap: Tensor, slope: Tensor) -> Tensor:
        """Move between the projections of point and image, each overshooting the linearised boundary by `eta`."""
        x, z, w = origin.flatten(1), point.flatten(1), slope.flatten(1)
        from_point = onto_plane(z, w, gap, self.ball.norm)
        from_image = onto_plane(x, w, gap + (w * (x - z)).sum(1), self.ball.norm)
        near, far = (self._norm(move).clamp_min(1e-8)[:, None] for move in (from_point, from_image))
        share = (near / (near + far)).clamp_max(self.alpha_max)
        moved = (z + self.eta * from_point) * (1 - share) + (x + self.eta * from_image) * share
        return moved.clamp_(0, 1).view_as(point)

    def _norm(self, flat: Tensor) -> Tensor:
        return _norms(flat, self.ball.norm)


def _norms(flat: Tensor, norm: str) -> Tensor:
    if norm == "l2":
        return l2_norms(flat)
    return flat.abs().amax(1) if norm == "linf" else flat.abs().sum(1)


class _Linearised:
    """The victim linearised at a point per row: logits with their graph, and the boundary predicted by gradients."""

    def __init__(
        self, victim: Attackable, point: Tensor, active: Tensor, y: Tensor, goals: Tensor, spent: dict[str, Tensor]
    ) -> None:
        self.active, self.y, self.goals, self.spent = active, y[active], goals[active], spent
        self.leaf = point.detach().requires_grad_()
        with torch.enable_grad():
            self.logits = victim(self.leaf)
        spent["forwards"][active] += 1

    def boundary(self, wanted: Tensor, norm: str) -> tuple[Tensor, Tensor]:
        """Logit difference to the class with the nearest boundary, and its gradient, for the wanted rows."""
        gap, slope = self.leaf.new_zeros(len(wanted)), torch.zeros_like(self.leaf)
        if not bool(wanted.any()):
            return gap, slope
        distance = torch.full_like(gap, math.inf)
        count = self.goals.shape[1]
        for k in range(count):
            with torch.enable_grad():
                lead = of_class(self.logits, self.goals[:, k]) - of_class(self.logits, self.y)
                (grad,) = torch.autograd.grad(lead[wanted].sum(), self.leaf, retain_graph=k < count - 1)
            self.spent["backwards"][self.active] += 1  # the pass covers the whole batch
            grad, lead = grad.nan_to_num(0.0, 0.0, 0.0), lead.detach().to(gap).nan_to_num(0.0, 0.0, 0.0)
            if count == 1:
                return lead, grad
            flat = grad.flatten(1)
            away = lead.abs() / (1e-12 + _norms(flat, DUAL[norm]))
            nearer = away < distance
            distance, gap = torch.where(nearer, away, distance), torch.where(nearer, lead, gap)
            slope = torch.where(per_row(nearer, grad), grad, slope)
        return gap, slope


def _verdicts(victim: Attackable, rows: Tensor, x: Tensor, y: Tensor, best: BestSoFar, t: int) -> tuple[Tensor, Tensor]:
    """(B,) verdicts at x, recorded in `best`, and the logits."""
    logits = victim(x)
    fooled = fools(victim, x, victim.verdict(x, logits), y)
    best.evidence["forwards"][rows] += victim.look
    best.note(rows, x, fooled, t)
    return fooled, logits


PAPER = "Croce & Hein, ICML 2020 (Fast Adaptive Boundary)"


@catalogued(paper=PAPER, quick="fab(steps=6)", threats=LP_AND_L1, draws=False)
def fab(
    ball: LpBall,
    *,
    steps: int = 100,
    restarts: int = 1,
    alpha_max: float = 0.1,
    eta: float = 1.05,
    beta: float = 0.9,
    stop: Stop = "first_success",
) -> FAB:
    """Minimum-norm attack towards the nearest boundary of all: 100 steps, each with a gradient per wrong class.

    A sample counts as fooled if its smallest perturbation is within the budget; stop=never minimises to the end, for the
    `distance` in the evidence. Restarts begin at random points. With many classes use fab_t.
    """
    return FAB(ball, steps, None, restarts, alpha_max, eta, beta, stop)


@catalogued(paper=PAPER, quick="fab_t(steps=6, targets=2)", threats=LP_AND_L1, draws=False)
def fab_t(
    ball: LpBall,
    *,
    targets: int = 9,
    steps: int = 100,
    restarts: int = 1,
    alpha_max: float = 0.1,
    eta: float = 1.05,
    beta: float = 0.9,
    stop: Stop = "first_success",
) -> FAB:
    """Minimum-norm attack towards each of the 9 likeliest wrong classes in turn, 100 steps of one gradient each.

    The targeted form of AutoAttack. With fewer than 10 classes all wrong ones are targets. stop=never and restarts as
    for fab.
    """
    return FAB(ball, steps, targets, restarts, alpha_max, eta, beta, stop)
