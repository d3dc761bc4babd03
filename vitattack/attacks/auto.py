"""`auto`: AutoAttack's verdict from few passes, because they are spent where they can still change it.

What breaks robust models is breadth: a short ascent towards each of the nine likeliest wrong classes finds what long
ones find. What long runs and attention views add shows on models whose gradients mislead, so they are
tried on the samples nearest to the boundary first, and on all of them as long as they still break some.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitattack.attacks.base import Attack, Crafted, Leaf, blank_search
from vitattack.attacks.catalogue import LP, register
from vitattack.attacks.compose import Stages
from vitattack.attacks.ensemble import apgd, apgd_ce, targets
from vitattack.attacks.named import pgd
from vitattack.attacks.starts import Corner
from vitattack.attacks.steps import Cosine, HeavyBall
from vitattack.diagnostics.rows import SATURATED_GAP, SATURATED_ROWS
from vitattack.errors import UsageError
from vitattack.losses import AnyLoss, Margin
from vitattack.models.attention import AttentionTap, Seen
from vitattack.models.layers import AttentionMap
from vitattack.models.probing import attention_layers
from vitattack.models.rescaled import Rescaled
from vitattack.models.victim import Victim, frozen
from vitattack.rng import SampleRng
from vitattack.threat import LpBall

BLOCK = 256  # consecutive samples that are ranked together: the unit of resume and of sharding
SCALES = (0.5, 0.3, 0.1)  # of the attention scores, in the views
NAMES = ("corner", "targets", *(f"scale {c:g}" for c in SCALES), "apgd margin", "apgd_ce")
WATCHED = 16  # images of a block whose attention is looked at


class Stage(NamedTuple):
    """An attack with the name under which its successes are counted, and the attention scale of its view."""

    name: str
    attack: Attack
    scale: float = 1.0


@dataclass(frozen=True)
class Auto(Leaf):
    """Opening stages on every sample, then rounds on the nearest ones, and on all while a round still breaks some.

    The views come in where the attention of the block's first images saturates. `most` rounds end what never ends.
    """

    ball: LpBall
    opening: tuple[Stage, ...]
    rounds: tuple[Stage, ...]
    share: float = 0.25
    least: int = 8
    most: int = 8
    chunk: int = 64
    block = BLOCK

    def in_chunks(self, size: int) -> Auto:
        """The same attack, asking the model about `size` samples at a time."""
        return replace(self, chunk=size)

    def with_loss(self, loss: AnyLoss) -> Auto:
        raise UsageError("auto chooses its losses itself: give the loss to pgd or apgd")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(stage.name for stage in (*self.opening, *self.rounds))

    def __call__(self, victim: nn.Module, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        if not isinstance(victim, Victim):
            raise UsageError(
                "auto attacks the plain model and makes its own views: name it alone, as in eval MODEL auto"
            )
        state = _State(x)
        if len(x) == 0:
            return Crafted(state.x_adv, state.evidence)
        layers, saturated = look(victim, x[:WATCHED])
        state.evidence["forwards"][:1] += 1
        state.evidence["forwards"][:WATCHED] += len(layers) > 0

        def through(stages: tuple[Stage, ...], rows: Tensor, first: int, turn: int) -> int:
            """Runs stages on those of the rows that still stand; how many fell."""
            before = len(state.standing())
            for number, stage in enumerate(stages, first):
                if stage.scale != 1 and not saturated:
                    continue
                view = victim if stage.scale == 1 else _scaled(victim, layers, stage.scale)
                left = state.standing(rows)
                for at in range(0, len(left), self.chunk):
                    part = left[at : at + self.chunk]
                    stream = rng[part].child(stage.name, turn)
                    state.take(part, Stages((stage.attack,))(view, x[part], y[part], rng=stream), number, turn)
            return before - len(state.standing())

        through(self.opening, torch.arange(len(x), device=x.device), 0, 0)
        for turn in range(1, self.most + 1):
            rows = state.standing()
            if turn == 1:
                rows = state.nearest(rows, max(self.least, round(self.share * len(rows))))
            if not through(self.rounds, rows, len(self.opening), turn):
                break
        return Crafted(state.x_adv, state.evidence)


class _State:
    """Candidates and evidence of a block while stages come and go."""

    def __init__(self, x: Tensor) -> None:
        self.x_adv, self.evidence = x.clone(), blank_search(x)
        for name in ("stage", "round"):
            self.evidence[name] = torch.full((len(x),), -1, dtype=torch.long, device=x.device)

    def standing(self, rows: Tensor | None = None) -> Tensor:
        fooled = self.evidence["fooled"]
        return (~fooled).nonzero().flatten() if rows is None else rows[~fooled[rows]]

    def nearest(self, rows: Tensor, count: int) -> Tensor:
        """The rows that came closest to the boundary, in their own order."""
        order = self.evidence["margin"][rows].argsort(descending=True, stable=True)
        return rows[order[:count].sort().values]

    def take(self, rows: Tensor, crafted: Crafted, stage: int, turn: int) -> None:
        """What a stage made of the rows."""
        found, own = crafted.evidence, self.evidence
        self.x_adv[rows] = crafted.x_adv
        for passes in ("forwards", "backwards"):
            own[passes][rows] += found[passes]
        own["zero_grad"][rows] |= found["zero_grad"]
        own["margin"][rows] = torch.maximum(own["margin"][rows], found["margin"])
        own["fooled"][rows] = found["fooled"]
        fell = rows[found["fooled"]]
        own["first_fooled"][fell] = found["first_fooled"][found["fooled"]]
        own["stage"][fell], own["round"][fell] = stage, turn


def look(victim: Victim, x: Tensor) -> tuple[AttentionMap, bool]:
    """The attention layers, and whether the softmax of one of them saturates on these images."""
    layers = attention_layers(victim, x)
    wide: list[float] = []

    def see(seen: Seen) -> None:
        scores, masked = seen.scores(torch.float32), seen.masked()
        scores = scores if masked is None else scores.masked_fill(masked, -torch.inf)
        top = scores.topk(2, dim=-1).values
        wide.append(float(((top[..., 0] - top[..., 1]) > SATURATED_GAP).float().mean()))

    if len(layers):
        with frozen(victim), torch.no_grad(), AttentionTap(layers, observe=see):
            victim(x)
    return layers, any(share > SATURATED_ROWS for share in wide)


def _scaled(victim: Victim, layers: AttentionMap, factor: float) -> nn.Module:
    return Rescaled(victim, torch.full((len(layers),), factor, device=victim.mean.device), layers=layers)


@register("auto", paper="vitattack", quick="auto(steps=2, k=2, long=4)", threats=LP, stages=lambda options: NAMES)
def auto(ball: LpBall, *, steps: int = 5, k: int = 9, long: int = 100) -> Auto:
    """AutoAttack's verdict at a fraction of its cost: a corner start, nine targets, then only what still pays.

    8 margin steps from a corner, `steps` steps towards each of `k` classes; then rounds of APGD on the margin and on
    cross-entropy and, where attention saturates, views with scaled scores, on the quarter nearest to the boundary, and
    on every sample as long as a round breaks one.
    """
    rule = HeavyBall(2.0, Cosine())
    short = pgd(ball, steps=8, loss=Margin(), start=Corner(), rule=rule)
    aimed = targets(pgd(ball, steps=steps, start=Corner(), rule=rule), k=k)
    views = tuple(Stage(f"scale {c:g}", replace(short, steps=20), c) for c in SCALES)
    found = Auto(
        ball,
        (Stage("corner", short), Stage("targets", aimed)),
        (
            *views,
            Stage("apgd margin", apgd(ball, steps=long, loss=Margin())),
            Stage("apgd_ce", apgd_ce(ball, steps=long)),
        ),
    )
    assert found.names == NAMES
    return found
