"""FAB: the nearest adversarial by projections onto linearised boundaries (Croce & Hein, ICML 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitattack.attacks import losses
from vitattack.attacks.base import Crafted, InBall, Traits
from vitattack.attacks.catalogue import catalogued
from vitattack.attacks.losses import AnyLoss
from vitattack.attacks.minimum_norm.best_so_far import Nearest, Stop
from vitattack.attacks.minimum_norm.projection import onto_plane
from vitattack.attacks.price import Asked, Price
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.models.victim import frozen
from vitattack.threats.base import per_row
from vitattack.threats.lp import LpBall, l2_norms


@dataclass(frozen=True)
class FAB(InBall):
    """Each step projects the iterate and the image onto the linearised boundary and goes between the two, a bit further.

    One that fools the victim is pulled back towards the image before the next step. With `targets` the boundaries are
    those to the k likeliest wrong classes of the clean image, one run each (one gradient per step); without, a step goes
    to the nearest of all (a gradient per wrong class). The logits of a new point give its verdict and the next
    linearisation, so that a step is one forward and one backward. A point that is pulled back would need a second
    forward for its own verdict; with stop="first_success" that is spent only inside the budget, where a verdict
    counts: beyond, a point after one that fooled is taken to fool as well. stop="never" asks everywhere, as released.
    First runs start at the image, restarts at random points up to half of eps away. What was found: `Nearest`.
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

    def price(self, asked: Asked) -> Price:
        """A look at the image; per run a linearisation per step and a look at the end."""
        wrong = asked.classes - 1
        goals, gradients = (1, wrong) if self.targets is None else (min(self.targets, wrong), 1)
        runs = goals * self.restarts
        # a start is judged by nobody; every further point but the last is judged by the logits it is linearised with
        looks = self.steps + (self.steps - 1) * asked.verdict
        return Price().more(asked.look + runs * (looks + asked.look), runs * self.steps * gradients)

    def to_the_end(self) -> FAB:
        return replace(self, stop="never")

    def with_loss(self, loss: AnyLoss) -> FAB:
        raise UsageError("fab follows differences of logits and takes no loss: use pgd(loss=...)")

    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        nearest = Nearest(self.ball, x, self.stop)
        if len(x):
            with frozen(victim), torch.no_grad():
                self._runs(victim, x, y, rng, nearest)
        return nearest.crafted()

    def _runs(self, victim: Attackable, x: Tensor, y: Tensor, rng: SampleRng, nearest: Nearest) -> None:
        everyone = torch.arange(len(x), device=x.device)
        logits = _judge(victim, everyone, x, y, nearest, 0)[1]
        wrong = logits.shape[1] - 1
        ranked = losses.wrong_classes(logits, y)
        goals = [ranked] if self.targets is None else [ranked[:, k : k + 1] for k in range(min(self.targets, wrong))]
        for number in range(len(goals) * self.restarts):
            target, restart = divmod(number, self.restarts)
            active = (~nearest.done).nonzero().flatten()
            if len(active) == 0:
                break
            start = x[active]
            if restart:
                start = self._random(start, rng[active].child("start", number))
            self._run(victim, y, goals[target], start, active, nearest, number * self.steps)

    def _random(self, x: Tensor, rng: SampleRng) -> Tensor:
        """A direction of full length in the ball, half way."""
        noise = rng.uniform(x, -1.0, 1.0) if self.ball.norm == "linf" else rng.normal(x)
        length = self._norm(noise.flatten(1)).clamp_min(1e-12)
        return (x + self.ball.eps / 2 * noise / per_row(length, x)).clamp(0, 1)

    def _run(
        self, victim: Attackable, y: Tensor, goals: Tensor, point: Tensor, active: Tensor, nearest: Nearest, before: int
    ) -> None:
        """One run from `point`. `goals` (all rows, K): the classes whose nearest boundary each step goes to."""
        spent = nearest.evidence
        # Whose last point fooled the victim: the next one most likely does too and will be pulled back, so it is judged
        # before anything is spent on linearising there.
        suspect = torch.zeros_like(active, dtype=torch.bool)
        for t in range(self.steps + 1):
            # the start is judged by nobody: the image was, and a random point is no candidate
            known = suspect | (t in (0, self.steps))
            fooled = suspect & self._beyond(nearest.x[active], point)
            ask = known & ~fooled
            if t and bool(ask.any()):
                rows = active[ask]
                fooled[ask] = _judge(victim, rows, point[ask], y[rows], nearest, before + t)[0]
                keep = ~nearest.done[active]
                active, point, known, fooled = (each[keep] for each in (active, point, known, fooled))
            if t == self.steps or len(active) == 0:
                return
            origin = nearest.x[active]
            point = torch.where(per_row(fooled, point), self._pulled(origin, point), point)
            here = _Linearised(victim, point, active, y, goals, spent)
            fresh = torch.zeros_like(known)
            if not bool(known.all()):
                rows, logits = active[~known], here.logits.detach()[~known]
                spent["forwards"][rows] += victim.verdict_forwards
                fresh[~known] = losses.is_fooled(victim.verdict(point[~known], logits), y[rows])
                nearest.note(active, point, fresh, before + t)
            gap, slope = here.boundary(~fresh, self.ball.norm)
            pulled = fresh & ~nearest.done[active]
            if bool(pulled.any()):
                point = torch.where(per_row(pulled, point), self._pulled(origin, point), point)
                there = _Linearised(victim, point[pulled], active[pulled], y, goals, spent)
                gap[pulled], slope[pulled] = there.boundary(
                    torch.ones_like(there.active, dtype=torch.bool), self.ball.norm
                )
            suspect = fooled | fresh
            keep = ~nearest.done[active]
            if not bool(keep.all()):
                active, suspect, origin, point, gap, slope = (
                    each[keep] for each in (active, suspect, origin, point, gap, slope)
                )
            point = self._step(origin, point, gap, slope)

    def _beyond(self, origin: Tensor, point: Tensor) -> Tensor:
        """(B,) points whose verdict would not count: those outside the budget, where only the budget matters."""
        if self.stop == "never":
            return torch.zeros(len(point), dtype=torch.bool, device=point.device)
        return self._norm((point - origin).flatten(1)) > self.ball.eps

    def _pulled(self, origin: Tensor, point: Tensor) -> Tensor:
        return origin + self.beta * (point - origin)

    def _step(self, origin: Tensor, point: Tensor, gap: Tensor, slope: Tensor) -> Tensor:
        """From the point and from the image past the plane where the difference of logits is zero, and in between."""
        x, z, w = origin.flatten(1), point.flatten(1), slope.flatten(1)
        from_point = onto_plane(z, w, gap, self.ball.norm)
        from_image = onto_plane(x, w, gap + (w * (x - z)).sum(1), self.ball.norm)
        near, far = (self._norm(move).clamp_min(1e-8)[:, None] for move in (from_point, from_image))
        share = (near / (near + far)).clamp_max(self.alpha_max)
        moved = (z + self.eta * from_point) * (1 - share) + (x + self.eta * from_image) * share
        return moved.clamp_(0, 1).view_as(point)

    def _norm(self, flat: Tensor) -> Tensor:
        return flat.abs().amax(1) if self.ball.norm == "linf" else l2_norms(flat)


class _Linearised:
    """The victim around a point of each row: logits with their graph, and the boundary its gradients predict."""

    def __init__(
        self, victim: Attackable, point: Tensor, active: Tensor, y: Tensor, goals: Tensor, spent: dict[str, Tensor]
    ) -> None:
        self.active, self.y, self.goals, self.spent = active, y[active], goals[active], spent
        self.leaf = point.detach().requires_grad_()
        with torch.enable_grad():
            self.logits = victim(self.leaf)
        spent["forwards"][active] += 1

    def boundary(self, wanted: Tensor, norm: str) -> tuple[Tensor, Tensor]:
        """The difference of logits to the class whose boundary is nearest, and its gradient, for the wanted rows."""
        gap, slope = self.leaf.new_zeros(len(wanted)), torch.zeros_like(self.leaf)
        if not bool(wanted.any()):
            return gap, slope
        distance = torch.full_like(gap, math.inf)
        count = self.goals.shape[1]
        for k in range(count):
            with torch.enable_grad():
                lead = losses.of_class(self.logits, self.goals[:, k]) - losses.of_class(self.logits, self.y)
                (grad,) = torch.autograd.grad(lead[wanted].sum(), self.leaf, retain_graph=k < count - 1)
            self.spent["backwards"][self.active] += 1  # the pass runs for the whole batch
            grad, lead = grad.nan_to_num(0.0, 0.0, 0.0), lead.detach().to(gap).nan_to_num(0.0, 0.0, 0.0)
            if count == 1:
                return lead, grad
            flat = grad.flatten(1)
            away = lead.abs() / (1e-12 + (flat.abs().sum(1) if norm == "linf" else l2_norms(flat)))
            nearer = away < distance
            distance, gap = torch.where(nearer, away, distance), torch.where(nearer, lead, gap)
            slope = torch.where(per_row(nearer, grad), grad, slope)
        return gap, slope


def _judge(victim: Attackable, rows: Tensor, x: Tensor, y: Tensor, nearest: Nearest, t: int) -> tuple[Tensor, Tensor]:
    """(B,) who is fooled at x, noted down, and the logits there."""
    logits = victim(x)
    fooled = losses.is_fooled(victim.verdict(x, logits), y)
    nearest.evidence["forwards"][rows] += victim.look
    nearest.note(rows, x, fooled, t)
    return fooled, logits


PAPER = "Croce & Hein, ICML 2020 (Fast Adaptive Boundary)"


@catalogued(paper=PAPER, quick="fab(steps=6)", draws=False)
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
    """Minimum-norm attack towards the nearest of all boundaries: 100 steps, each a gradient per wrong class.

    A sample counts as fooled if the smallest change found is within the budget; stop=never goes on to the end, for the
    `distance` in the evidence. Restarts begin at random points. With many classes use fab_t.
    """
    return FAB(ball, steps, None, restarts, alpha_max, eta, beta, stop)


@catalogued(paper=PAPER, quick="fab_t(steps=6, targets=2)", draws=False)
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
