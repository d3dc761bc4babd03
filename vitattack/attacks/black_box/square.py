"""Square: random search with square patches, from logits alone (Andriushchenko et al., ECCV 2020)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache

import torch
from torch import Tensor

from vitattack.attacks.base import Crafted, InBall, Traits, blank_evidence
from vitattack.attacks.catalogue import LP_AND_L1, catalogued
from vitattack.attacks.losses.base import AnyLoss, Loss, Remembering, claim_draws, fools, mean_answer
from vitattack.attacks.losses.plain import Margin
from vitattack.attacks.price import Price, PriceQuery
from vitattack.core.errors import UsageError
from vitattack.core.progress import in_stage
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.models.victim import frozen
from vitattack.threats.base import per_row
from vitattack.threats.lp import LpBall

# Draws uniform numbers in the shape of a tensor, a row per sample.
Draw = Callable[[SampleRng, Tensor], Tensor]
# The share of the image covered by a square halves after each of these queries, for a run of 10,000.
HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
# Queries whose random numbers are drawn at once: a generator per sample and query would cost more than the query.
QUERIES_PER_DRAW = 250


@dataclass(frozen=True)
class Square(InBall):
    """Starts with vertical stripes (linf) or tiles (l2, l1), then tries one random square per query and keeps improvements.

    The start and Q queries are Q + 1 forwards; a fooled sample leaves at once, the others end at their best point. Each
    sample has its own squares. They reach the last row and column, as in the paper; the released code stops one short.
    """

    ball: LpBall
    queries: int = 5000
    p: float = 0.8
    loss: AnyLoss = field(default_factory=Margin)
    rescale: bool = False
    draw: Draw = SampleRng.uniform

    def __post_init__(self) -> None:
        if not 1 <= self.queries <= 1_000_000:
            raise UsageError(f"square cannot make {self.queries} queries: use 1 to 1000000")
        if not 0 < self.p <= 1:
            raise UsageError(f"p={self.p:g} is no share of the image: use more than 0 and at most 1, such as 0.8")
        if isinstance(self.loss, Remembering):
            raise UsageError(
                "square needs a loss that is the same for all queries: use margin, ce or another plain loss"
            )

    @property
    def traits(self) -> Traits:
        return Traits(near_boundary=True)

    def price(self, query: PriceQuery) -> Price:
        return Price().more(query.look * (self.queries + 1))

    def with_loss(self, loss: AnyLoss) -> Square:
        return replace(self, loss=loss)

    @torch.no_grad()
    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        evidence = blank_evidence(x)
        result = x.clone()
        if len(x):
            with frozen(victim):
                self._run(victim, x, y, rng, result, evidence)
        return Crafted(result, evidence)

    def _run(
        self, victim: Attackable, x: Tensor, y: Tensor, rng: SampleRng, result: Tensor, evidence: dict[str, Tensor]
    ) -> None:
        assert not isinstance(self.loss, Remembering)
        loss: Loss = self.loss
        active = torch.arange(len(x), device=x.device)
        best, score = x, torch.full((len(x),), -math.inf, device=x.device, dtype=x.dtype)
        noise = x.new_empty(0)
        for t in in_stage("queries", range(self.queries + 1)):
            if t == 0:
                trial = self._start(x, rng.child("start"))
            else:
                number, row = divmod(t - 1, QUERIES_PER_DRAW)
                if row == 0:
                    size = min(QUERIES_PER_DRAW, self.queries - t + 1), self._numbers(x)
                    noise = self.draw(rng[active].child("queries", number), _double(len(active), *size))
                trial = self._propose(x, best, noise[:, row], t - 1)
            logits = victim(trial)
            verdict = victim.verdict(trial, logits)
            evidence["forwards"][active] += victim.look + claim_draws(victim, verdict, y)
            fooled = fools(victim, trial, verdict, y)
            values = loss(mean_answer(logits), y).to(x.dtype).nan_to_num(-math.inf, math.inf, -math.inf)
            better = values > score
            score = torch.where(better, values, score)
            best = torch.where(per_row(better | (t == 0), x), trial, best)
            if bool(fooled.any()):
                leaving, keep = active[fooled], ~fooled
                result[leaving] = trial[fooled]
                evidence["fooled"][leaving] = True
                evidence["first_fooled"][leaving] = t
                x, y, active, best, score = (rows[keep] for rows in (x, y, active, best, score))
                noise = noise[keep.cpu()] if t else noise
                if len(active) == 0:
                    return
        result[active] = best

    def side(self, t: int, height: int, width: int) -> int:
        """Side of the square of query `t` (from 0) in pixels; odd in l2 and l1, whose pattern has a centre."""
        t = int(t / self.queries * 10_000) if self.rescale else t
        p = self.p / 2 ** sum(t > halving for halving in HALVINGS)
        side = round(math.sqrt(p * height * width))
        side = max(side, 1) if self.ball.norm == "linf" else max(side, 3) // 2 * 2 + 1
        return min(side, height, width)

    def _numbers(self, x: Tensor) -> int:
        """Random numbers per query: positions and, in l2 and l1, an orientation; then a sign per channel."""
        return x.shape[1] + (2 if self.ball.norm == "linf" else 5)

    def _start(self, x: Tensor, rng: SampleRng) -> Tensor:
        channels, height, width = x.shape[1:]
        if self.ball.norm == "linf":
            signs = _signs(self.draw(rng, _double(len(x), channels, width)), x)
            return self.ball.project(x, x + self.ball.eps * signs[:, :, None])
        side = max(min(height, width) // 5, 1)
        margin = max((min(height, width) - 5 * side) // 2, 0)
        tops, lefts = (range(margin, size - side + 1, side) for size in (height, width))
        places = [(top, left) for top in tops for left in lefts]
        noise = self.draw(rng, _double(len(x), len(places), 1 + channels))
        signs = _signs(noise[..., 1:], x)
        delta = torch.zeros_like(x)
        for i, (top, left) in enumerate(places):
            pattern = _pattern(side, self._order, noise[:, i, 0], x)
            delta[:, :, top : top + side, left : left + side] = pattern * signs[:, i, :, None, None]
        return self._at_full_budget(x, delta)

    def _propose(self, x: Tensor, best: Tensor, noise: Tensor, t: int) -> Tensor:
        height, width = x.shape[-2:]
        side = self.side(t, height, width)
        first = _Window(noise[:, 0], noise[:, 1], side, x)
        if self.ball.norm == "linf":
            signs = _signs(noise[:, 2:], x)[:, :, None, None]
            return self.ball.project(x, best + 2 * self.ball.eps * signs * first.mask)
        second = _Window(noise[:, 2], noise[:, 3], side, x)
        signs = _signs(noise[:, 5:], x)[:, :, None, None]
        order, channels = self._order, x.shape[1]
        delta = best - x
        # the new pattern replaces the first window and takes the energy of both windows and of the unused budget
        energy = _norm(delta * (first.mask | second.mask), order).pow(order)
        spare = (self.ball.eps**order - _norm(delta, order, (1, 2, 3)).pow(order)).clamp_min(0) / channels
        old = delta[first.index]
        new = _pattern(side, order, noise[:, 4], x) * signs + old / (1e-12 + _norm(old, order))
        delta[second.index] = 0.0
        # in l1 as much for each channel as for all together, as in the released code: the projection takes back the excess
        size = channels * (spare + energy) if order == 1 else (spare + energy).sqrt()
        delta[first.index] = new / (1e-12 + _norm(new, order)) * size
        return self._at_full_budget(x, delta)

    def _at_full_budget(self, x: Tensor, delta: Tensor) -> Tensor:
        if self._order == 1:
            return self.ball.project(x, x + delta)
        return self.ball.project(x, x + self.ball.eps * delta / (_norm(delta, 2, (1, 2, 3)) + 1e-12))

    @property
    def _order(self) -> int:
        return 1 if self.ball.norm == "l1" else 2


class _Window:
    """A square window at a different position in each image, as a mask and as an index."""

    def __init__(self, down: Tensor, across: Tensor, side: int, x: Tensor) -> None:
        height, width = x.shape[-2:]
        top = (down * (height - side + 1)).long().to(x.device)[:, None]
        left = (across * (width - side + 1)).long().to(x.device)[:, None]
        steps = torch.arange(side, device=x.device)
        row, column = (torch.arange(size, device=x.device) for size in (height, width))
        rows, columns = (row >= top) & (row < top + side), (column >= left) & (column < left + side)
        self.mask = rows[:, None, :, None] & columns[:, None, None, :]
        self.index = (
            torch.arange(len(x), device=x.device)[:, None, None, None],
            torch.arange(x.shape[1], device=x.device)[:, None, None],
            (top + steps)[:, None, :, None],
            (left + steps)[:, None, None, :],
        )


def _double(*shape: int) -> Tensor:
    """Positions are computed from float64 on the CPU, since the largest number would round to one in float32."""
    return torch.empty(shape, dtype=torch.float64)


def _signs(uniform: Tensor, like: Tensor) -> Tensor:
    return torch.where(uniform < 0.5, -1.0, 1.0).to(like)


def _norm(values: Tensor, order: int, dim: tuple[int, ...] = (2, 3)) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(values, order, dim=dim, keepdim=True)
    return norms


def _pattern(side: int, order: int, turn: Tensor, like: Tensor) -> Tensor:
    """(B, 1, side, side) l2 or l1 pattern, upright or turned by a random number per sample."""
    upright = _hills(side, order).to(like)
    return torch.where((turn > 0.5).to(like.device)[:, None, None], upright.T, upright)[:, None]


@cache
def _hills(side: int, order: int) -> Tensor:
    """A hill on one half of a square and a valley on the other, of unit norm; steeper in l1."""

    def hill(height: int, width: int) -> Tensor:
        rings = torch.arange(1, max(height, width) // 2 + 2, dtype=torch.float64)
        levels = rings.pow(-4 if order == 1 else -2).flip(0).cumsum(0).flip(0)  # from the top down
        down, across = ((torch.arange(size) - size // 2).abs() for size in (height, width))
        values = levels[torch.maximum(down[:, None], across)]
        return values / _norm(values, order, (0, 1)).clamp_min(1e-12)

    both = torch.cat([hill(side // 2, side), -hill(side - side // 2, side)])
    return both / _norm(both, order, (0, 1))


@catalogued(
    paper="Andriushchenko et al., ECCV 2020; in l1 Croce & Hein, ICML 2021",
    quick="square(queries=60)",
    threats=LP_AND_L1,
    black_box=True,
)
def square(
    ball: LpBall, *, queries: int = 5000, p: float = 0.8, loss: AnyLoss = Margin(), rescale: bool = False
) -> Square:
    """Random search without gradients: 5000 queries, each tries one square patch and keeps it if the margin grows.

    `p` is the share of the image that the first squares cover. It halves on the schedule of 10,000 queries whatever
    `queries` is, as in AutoAttack; rescale=True fits the schedule to the run.
    """
    return Square(ball, queries, p, loss, rescale)
