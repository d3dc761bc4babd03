"""`auto`: AutoAttack's verdict from few passes, because they are spent where they can still change it.

What breaks robust models is breadth: a short ascent towards each of the nine likeliest wrong classes finds what long
ones find. What long runs and attention views add shows on models whose gradients mislead, so they are
tried on the samples nearest to the boundary first, and on all of them as long as they still break some.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from vitattack.attacks import stages
from vitattack.attacks.auto import probes
from vitattack.attacks.auto.assurance import assurance
from vitattack.attacks.auto.numbering import MOST, NAMES, STAGES, TAIL
from vitattack.attacks.auto.report import report_sections
from vitattack.attacks.autoattack.autoattack import apgd, apgd_ce, targets
from vitattack.attacks.base import Assurance, Attack, Calibration, Crafted, InBall, Traits, blank_search
from vitattack.attacks.catalogue import catalogued
from vitattack.attacks.compose import confirmed
from vitattack.attacks.gradient.starts import Corner
from vitattack.attacks.gradient.steps import Cosine, HeavyBall
from vitattack.attacks.gradient.variants import pgd
from vitattack.attacks.losses.base import AnyLoss
from vitattack.attacks.losses.plain import Margin
from vitattack.attacks.price import PassesPerImage, Price, PriceQuery, sum_of
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.attention.map import AttentionMap
from vitattack.models.attention.rescaled import Rescaled
from vitattack.models.base import Attackable
from vitattack.models.victim import Victim
from vitattack.models.views import Half
from vitattack.records.section import Run, Section
from vitattack.threats.lp import LpBall

BLOCK = 256  # consecutive samples that are ranked together: the unit of resume and of sharding
SCALE = 0.3  # of the attention scores, in the view
WATCHED = 16  # images of a block that are looked at beforehand
LOOKS = 2  # forwards of the block's first image before any stage
MANY_CLASSES = 10**9  # more than any number of targets
# Passes around a stage: clean forward, confirmation of a claim, and verdicts of the judge, the second of which may be two.
STAGE_OVERHEAD = 5


class Stage(NamedTuple):
    """An attack with the name under which its successes are counted, and the attention scale of its view."""

    name: str
    attack: Attack
    scale: float = 1.0

    def price(self, query: PriceQuery) -> PassesPerImage:
        """The passes of a sample it does not break."""
        return self.attack.price(query if self.scale == 1 else query.through_view()).victim


@dataclass(frozen=True)
class Auto(InBall):
    """Opening stages on every sample, then rounds on the nearest ones, and on all while a round still breaks some.

    Where the attention of the block's first images saturates, so that gradients mislead, the rounds are `hard` ones, and
    it takes two without a success to end them. `most` rounds end what never ends. With a budget of `passes` per sample
    rounds go on over everybody until it is spent, with `until` until one breaks nobody. With `half` the search runs in
    bfloat16 where gradients agree, every success is confirmed by the plain victim, and `tail` looks at who stands in
    float32.
    """

    ball: LpBall
    opening: tuple[Stage, ...]
    rounds: tuple[Stage, ...]
    hard: tuple[Stage, ...]
    tail: Stage
    share: float = 0.25
    least: int = 8
    most: int = MOST
    chunk: int = 64
    passes: int | None = None
    until: Literal["converged"] | None = None
    half: bool = False

    @property
    def traits(self) -> Traits:
        # a budget does not pay for two tries
        return Traits(block=BLOCK, near_boundary=True, second_try=self.passes is None)

    @property
    def parts(self) -> tuple[Attack, ...]:
        return tuple(stage.attack for stage in self.every_stage)

    def with_parts(self, parts: Sequence[Attack]) -> Auto:
        changed = iter([stage._replace(attack=part) for stage, part in zip(self.every_stage, parts, strict=True)])
        opening, rounds, hard = (tuple(islice(changed, len(of))) for of in (self.opening, self.rounds, self.hard))
        return replace(self, opening=opening, rounds=rounds, hard=hard, tail=next(changed))

    @property
    def every_stage(self) -> tuple[Stage, ...]:
        return (*self.opening, *self.rounds, *self.hard, self.tail)

    def prepare(self, victim: Attackable, calibration: Calibration, *, rng: SampleRng) -> Auto:
        return self  # its stages learn nothing, and targets are ranked for every image

    def doubts(self) -> tuple[str, ...]:
        return ()

    def stage_names(self, text: str) -> tuple[str, ...]:
        return (*NAMES, *STAGES)

    def report(self, run: Run) -> tuple[Section, ...]:
        own = report_sections(run, budget=self.passes, converges=self.until is not None)
        return (*own, *stages.stage_section(self.stage_names(run.job.attack), run, in_notes=False))

    def price(self, query: PriceQuery) -> Price:
        """Of a sample that stays among the nearest, on a model whose attention does not saturate; others skip the round.

        What the assurance adds is at most 15 % of that, unless it escalates.
        """
        spent = sum_of(stage.price(query) for stage in self.opening).plus(PassesPerImage(LOOKS))
        rounds = [stage.price(query) for stage in self.rounds]
        if self.passes is None:
            return Price(spent.plus(sum_of(rounds)))
        turn = sum_of(rounds)
        spent = spent.plus(turn.times(max(0, self.passes - STAGE_OVERHEAD - spent.total) // turn.total))
        for passes in rounds:
            if spent.total + passes.total + STAGE_OVERHEAD <= self.passes:
                spent = spent.plus(passes)
        return Price(spent)

    def in_chunks(self, size: int) -> Auto:
        """The same attack, asking the model about `size` samples at a time."""
        return replace(self, chunk=size)

    def in_half(self) -> Auto:
        """The same attack, searching in bfloat16 where that finds the same."""
        self.check_budget(2 * self.dearest(self.opening[0]) + self.dearest(self.tail) + LOOKS + probes.PASSES)
        return replace(self, half=True)

    def dearest(self, stage: Stage) -> int:
        """What a stage may cost a sample of a model with any number of classes."""
        return int(stage.price(PriceQuery(MANY_CLASSES, self.ball)).total)

    def check_budget(self, least: int) -> None:
        """Refuses a budget that a stage, with all that goes around it, does not fit into."""
        if self.passes is not None and self.passes < least + STAGE_OVERHEAD:
            raise UsageError(
                f"a budget of {self.passes} passes pays for no stage of auto: give at least {least + STAGE_OVERHEAD}"
            )

    def with_loss(self, loss: AnyLoss) -> Auto:
        raise UsageError("auto chooses its losses itself: give the loss to pgd or apgd")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(s.name for s in (*self.opening, *self.hard, *self.rounds, self.tail)))

    @property
    def assurance(self) -> Assurance | None:
        """What a finished run's survivors still meet; a budget per sample leaves no room for it."""
        return None if self.passes else assurance(self.ball, len(self.names))

    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        if not isinstance(victim, Victim):
            raise UsageError(
                "auto attacks the plain model and makes its own views: name it alone, as in eval MODEL auto"
            )
        block = _Block(self, victim, x, y, rng)
        if len(x):
            block.look()
            self._search(block)
            if block.half is not None and block.run((self.tail,), block.standing(), 0):
                block.half = None  # bfloat16 has missed something: once more without it
                self._search(block, again=True)
        return Crafted(block.x_adv, block.evidence)

    def _search(self, block: _Block, *, again: bool = False) -> None:
        """The opening and the rounds; a second search goes on with numbers of its own, hence other noise."""
        before = self.most + 1 if again else 0
        block.run(self.opening, block.standing(), before)
        rounds, enough = (self.hard, 2) if block.saturated else (self.rounds, 1)
        idle = 0  # rounds in turn that broke nobody
        everybody = self.passes is not None or self.until is not None
        # a budget ends by itself, and so does a search that goes on only while somebody falls
        for turn in count(before + 1) if everybody else range(before + 1, before + 1 + self.most):
            rows = block.standing()
            if turn == before + 1 and not everybody:
                rows = block.nearest(rows, max(self.least, round(self.share * len(rows))))
            spent = block.spent
            idle = 0 if block.run(rounds, rows, turn) else idle + 1
            if block.spent == spent or (idle == enough and (self.until or not self.passes)):
                break


class _Block:
    """Candidates and evidence of samples that are ranked together, while stages come and go."""

    def __init__(self, auto: Auto, victim: Victim, x: Tensor, y: Tensor, rng: SampleRng) -> None:
        self.auto, self.victim, self.x, self.y, self.rng = auto, victim, x, y, rng
        self.x_adv, self.evidence = x.clone(), blank_search(x)
        self.half: Half | None = None
        self.layers: AttentionMap | None = None
        self.saturated = False
        for name in ("stage", "round"):
            self.evidence[name] = torch.full((len(x),), -1, dtype=torch.long, device=x.device)
        self.evidence["ce_flat"] = torch.zeros(len(x), dtype=torch.bool, device=x.device)

    def look(self) -> None:
        """What the first images say of the model, before any is attacked."""
        x, y, first = self.x[:WATCHED], self.y[:WATCHED], slice(0, WATCHED)
        self.layers, self.saturated = probes.attention(self.victim, x)
        self.evidence["saturated"] = torch.full_like(self.evidence["fooled"], self.saturated)
        self.evidence["forwards"][:1] += 1
        self.evidence["forwards"][first] += len(self.layers) > 0
        if self.auto.half:
            half = Half(self.victim)
            rng = self.rng[torch.arange(len(x))].child("agreement")
            agreed = probes.agreement(self.victim, half, self.auto.ball, x, y, rng)
            self.evidence["agreement"] = torch.full_like(self.evidence["margin"], agreed)
            for passes in ("forwards", "backwards"):
                self.evidence[passes][first] += probes.PASSES // 2
            self.half = half if agreed >= probes.AGREEMENT else None

    @property
    def spent(self) -> int:
        return int(self._passes.sum())

    @property
    def _passes(self) -> Tensor:
        return self.evidence["forwards"] + self.evidence["backwards"]

    def standing(self, rows: Tensor | None = None) -> Tensor:
        fooled = self.evidence["fooled"]
        return (~fooled).nonzero().flatten() if rows is None else rows[~fooled[rows]]

    def nearest(self, rows: Tensor, count: int) -> Tensor:
        """The rows that came closest to the boundary, in their own order."""
        order = self.evidence["margin"][rows].argsort(descending=True, stable=True)
        return rows[order[:count].sort().values]

    def run(self, stages: tuple[Stage, ...], rows: Tensor, turn: int) -> int:
        """Runs stages on those of the rows that stand and can afford them; how many fell."""
        before = len(self.standing())
        for stage in stages:
            left = self.standing(rows)
            if self.auto.passes is not None:
                left = left[self._passes[left] + self._most(stage) + STAGE_OVERHEAD <= self.auto.passes]
            for at in range(0, len(left), self.auto.chunk):
                self._run(stage, left[at : at + self.auto.chunk], turn)
        return before - len(self.standing())

    def _most(self, stage: Stage) -> int:
        """What a stage may cost a sample: in bfloat16 a claim may fail, and the tail has to be paid for as well."""
        price = self.auto.dearest(stage)
        return price if self.half is None or stage.name == TAIL else 2 * price + self.auto.dearest(self.auto.tail)

    def _run(self, stage: Stage, rows: Tensor, turn: int) -> None:
        view: Attackable = self.victim
        if stage.scale != 1:
            assert self.layers is not None
            factors = torch.full((len(self.layers),), stage.scale, device=self.x.device)
            view = Rescaled(self.victim, factors, layers=self.layers)
        elif self.half is not None and stage.name != TAIL:
            view = self.half
        unconfirmed = self._take(stage, view, rows, turn)
        if view is self.half and len(unconfirmed):  # they have left the stage early, for nothing
            self._take(stage, self.victim, unconfirmed, turn)

    def _take(self, stage: Stage, view: Attackable, rows: Tensor, turn: int) -> Tensor:
        """Runs a stage through a view and notes what it made of the rows; those it claims without the plain victim."""
        stream = self.rng[rows].child(stage.name, turn)
        number = self.auto.names.index(stage.name)
        x_adv, found = stage.attack(view, self.x[rows], self.y[rows], rng=stream)
        claims, own = found["fooled"], self.evidence
        fooled = confirmed(self.victim, x_adv, self.y[rows], claims)
        self.x_adv[rows] = x_adv
        cost = {"forwards": found["forwards"] + claims.long(), "backwards": found["backwards"]}
        for passes, more in cost.items():
            own[passes][rows] += more
        name = f"spent {stage.name}"
        own.setdefault(name, torch.zeros_like(own["forwards"]))
        own[name][rows] += cost["forwards"] + cost["backwards"]
        # blind means that no stage has seen a gradient; a cross-entropy that alone sees none is another matter
        flat = found["zero_grad"]
        own["zero_grad"][rows] = flat if number == 0 else own["zero_grad"][rows] & flat
        if stage.name == "apgd_ce":
            own["ce_flat"][rows] |= flat
        own["margin"][rows] = torch.maximum(own["margin"][rows], found["margin"])
        own["fooled"][rows] = fooled
        fell = rows[fooled]
        own["first_fooled"][fell] = found["first_fooled"][fooled]
        own["stage"][fell], own["round"][fell] = number, turn
        return rows[claims & ~fooled]


@catalogued(paper="vitattack", quick="auto(steps=2, k=2, long=4)")
def auto(
    ball: LpBall,
    *,
    steps: int = 5,
    k: int = 9,
    long: int = 50,
    passes: int | None = None,
    until: Literal["converged"] | None = None,
) -> Auto:
    """AutoAttack's verdict at a fraction of its cost: short runs towards nine classes, then only what still pays.

    `steps` margin steps from a corner of the ball towards each of `k` classes; then rounds of APGD, `long` steps on the
    margin and on cross-entropy, on the quarter nearest to the boundary, and on every sample as long as a round breaks
    one. Where attention saturates they are twice as long, and a view with scaled scores joins them. `passes` is a
    budget per sample, all of which is spent; until=converged goes on over all samples until a round breaks none.
    """
    rule = HeavyBall(2.0, Cosine())
    short = pgd(ball, steps=steps, loss=Margin(), start=Corner(), rule=rule)

    def runs(steps: int) -> tuple[Stage, ...]:
        margin = Stage("apgd margin", apgd(ball, steps=steps, loss=Margin()))
        return margin, Stage("apgd_ce", apgd_ce(ball, steps=steps))

    first = Stage("targets", targets(short, k=k))
    found = Auto(
        ball,
        (first,),
        runs(long),
        (Stage("view", replace(short, steps=20), SCALE), *runs(2 * long)),
        Stage(TAIL, replace(short, steps=4)),
        passes=passes,
        until=until,
    )
    assert found.names == NAMES
    found.check_budget(found.dearest(first) + LOOKS)
    return found
