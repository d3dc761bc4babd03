"""`auto`: AutoAttack's verdict from few passes, spent where they can still change it.

Robust models fall to breadth: short ascents towards each of the nine likeliest wrong classes succeed where long ones do.
Long runs and attention views help on models with misleading gradients, so they are tried first on the samples nearest
to the decision boundary, and on all samples once they broke one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Literal

import torch
from torch import Tensor

from vitattack.attacks import stages
from vitattack.attacks.auto import model_checks
from vitattack.attacks.auto.assurance import assurance
from vitattack.attacks.auto.auto_stage import STAGE_OVERHEAD, AutoStage, overhead
from vitattack.attacks.auto.block import BlockSettings, SampleBlock
from vitattack.attacks.auto.composition import CHUNK, TIED, USUAL, USUAL_IN_L1, breadth, one_round, tie_breaker
from vitattack.attacks.auto.numbering import ALL, BLACK_BOX, DETOUR, MOST, NAMES, QUERIES, SELDOM, TAIL
from vitattack.attacks.auto.report import ran, report_sections
from vitattack.attacks.auto.short import short_ascent
from vitattack.attacks.autoattack.autoattack import targets
from vitattack.attacks.base import (
    BEYOND,
    ROUGH,
    UNTRUSTED,
    Assurance,
    Attack,
    Calibration,
    Crafted,
    DoubtedCrafted,
    InBall,
    Traits,
)
from vitattack.attacks.black_box.square import square
from vitattack.attacks.catalogue import LP_AND_L1, catalogued
from vitattack.attacks.losses.base import AnyLoss
from vitattack.attacks.price import PassesPerImage, Price, PriceQuery, sum_of
from vitattack.core.errors import UsageError
from vitattack.core.progress import stage
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.models.lost_gradients import NoGradient, lost_gradients_named
from vitattack.models.victim import Victim
from vitattack.records.report_section import Run, Section
from vitattack.threats.lp import LpBall

BLOCK = 256  # consecutive samples that are ranked against each other: the unit of resume and of sharding
SCALE = 0.3  # of the attention scores, in the view
LOOKS = 2  # forwards of the block's first image before any stage
FEWEST = 5  # steps towards each class, where more would take over a quarter of a budget


@dataclass(frozen=True)
class Auto(InBall):
    """Opening stages on all samples, then rounds on those nearest to the boundary, and on all once a round breaks some.

    Where the model does not do what its gradient promises, opening and rounds take a `detour`: substitute gradients; in the
    end the `black_box` runs on the nearest survivors, and on all if it breaks one of them. Where rounds broke samples, the
    assurance probes more of the nearest. Survivors so near to the boundary that another seed might break them get `ties`.

    If attention saturates on the first images of the block, so that gradients mislead, rounds are the `hard` ones and end
    after two without a success. There are at most `most` rounds, or MOST hard ones. With a budget of `passes` per sample,
    rounds run on all samples until it is spent; with `until`, until one breaks none. With `half` the search runs in bfloat16
    where gradients agree, the plain victim confirms every success, and `tail` attacks the survivors in float32.
    """

    ball: LpBall
    opening: tuple[AutoStage, ...]
    rounds: tuple[AutoStage, ...]
    hard: tuple[AutoStage, ...]
    tail: AutoStage
    detour: AutoStage
    black_box: AutoStage
    ties: AutoStage
    share: float = USUAL.share
    least: int = 8
    most: int = USUAL.most
    chunk: int = CHUNK
    passes: int | None = None
    until: Literal["converged"] | None = None
    half: bool = False

    @property
    def traits(self) -> Traits:
        # a budget pays neither for a second try nor for a certificate
        whole = self.passes is None
        return Traits(block=BLOCK, near_boundary=True, without_gradient=True, second_try=whole, certified=whole)

    @property
    def parts(self) -> tuple[Attack, ...]:
        return tuple(stage.attack for stage in self.every_stage)

    def with_parts(self, parts: Sequence[Attack]) -> Auto:
        changed = iter([stage._replace(attack=part) for stage, part in zip(self.every_stage, parts, strict=True)])
        opening, rounds, hard = (tuple(islice(changed, len(of))) for of in (self.opening, self.rounds, self.hard))
        tail, detour, black_box, ties = changed
        return replace(
            self,
            opening=opening,
            rounds=rounds,
            hard=hard,
            tail=tail,
            detour=detour,
            black_box=black_box,
            ties=ties,
        )

    @property
    def every_stage(self) -> tuple[AutoStage, ...]:
        return (*self.opening, *self.rounds, *self.hard, self.tail, self.detour, self.black_box, self.ties)

    def prepare(self, victim: Attackable, calibration: Calibration, *, rng: SampleRng) -> Auto:
        return self  # stages learn nothing, and targets are ranked for every image

    def doubts(self) -> tuple[str, ...]:
        return ()

    def stage_names(self, text: str) -> tuple[str, ...]:
        return ALL

    def report(self, run: Run) -> tuple[Section, ...]:
        own = report_sections(run, budget=self.passes, converges=self.until is not None)
        shown = ALL if any(ran(name, run.records) for name in SELDOM) else ALL[: -len(SELDOM)]
        return (*own, *stages.stage_section(shown, run, in_notes=False))

    def price(self, query: PriceQuery) -> Price:
        """Price of a sample among the nearest, on a model whose attention does not saturate; others skip the round.

        The assurance adds about 20 %, unless it escalates.
        """
        spent = sum_of(stage.price(query) for stage in self.opening).plus(PassesPerImage(LOOKS))
        if self.passes is None:
            spent = spent.plus(model_checks.FIDELITY_PASSES)
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
        return replace(self, chunk=size, ties=self.ties._replace(attack=self.ties.attack.in_chunks(size)))

    def in_half(self) -> Auto:
        self.check_budget(
            2 * self.opening[0].dearest(self.ball) + self.tail.dearest(self.ball) + LOOKS + model_checks.PASSES
        )
        return replace(self, half=True)

    def check_budget(self, least: int, around: int = STAGE_OVERHEAD, on: str = "") -> None:
        """Refuse a budget too small for one stage with the passes `around` it."""
        if self.passes is not None and self.passes < least + around:
            raise UsageError(
                f"a budget of {self.passes} passes pays for no stage of auto{on}: give at least {least + around}"
            )

    def with_loss(self, loss: AnyLoss) -> Auto:
        raise UsageError("auto chooses its losses itself: use pgd(loss=...) or apgd(loss=...)")

    @property
    def block_settings(self) -> BlockSettings:
        return BlockSettings(self.ball, self.names, self.tail, self.chunk, self.passes, self.half)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(s.name for s in (*self.opening, *self.hard, *self.rounds, self.tail, self.ties)))

    @property
    def assurance(self) -> Assurance | None:
        """Further attacks on survivors of a finished run; a budget per sample leaves no room for them."""
        return None if self.passes else assurance(self.ball, len(NAMES))

    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        if not isinstance(victim, Victim):
            raise UsageError(
                "auto attacks the plain model and makes its own views: name it alone, as in eval MODEL auto"
            )
        if victim.is_random:
            self.check_budget(
                self.opening[0].dearest(self.ball, victim) + LOOKS, overhead(victim), " on a random model"
            )
        block = SampleBlock(self.block_settings, victim, x, y, rng)
        if len(x):
            try:
                with lost_gradients_named(victim, x):
                    self._attack(block)
            except NoGradient:
                block.run_blind()
        return DoubtedCrafted.of(block.x_adv, block.evidence, block.doubts)

    def _attack(self, block: SampleBlock) -> None:
        with stage("looking at gradients and attention"):
            block.probe()
        if block.lost and block.detour is None:
            block.run_blind()
            return
        self._search(block)
        if block.half is not None and block.run((self.tail,), block.survivors(), 0):
            block.half = None  # bfloat16 missed a success: search again in float32
            self._search(block, again=True)

    def _search(self, block: SampleBlock, *, again: bool = False) -> None:
        """Run the opening and the rounds; a second search numbers its rounds onwards and so draws other noise."""
        before = MOST + 1 if again else 0
        if not block.lost:
            block.run(self.opening, block.survivors(), before)
        rounds, enough = (self.hard, 2) if block.saturated else (self.rounds, 1)
        if block.detour is not None:
            detour = self.detour._replace(name=block.detour.stage)
            block.run((detour,), block.survivors(), before)
            rounds = (detour, *rounds) if block.trusted else (detour,)
        idle, broke = 0, 0  # consecutive rounds without a success; samples that rounds broke
        on_all = self.passes is not None or self.until is not None
        most = MOST if block.saturated else self.most
        # unlimited rounds end, too: with the budget, or with the first round that breaks none
        for turn in count(before + 1) if on_all else range(before + 1, before + 1 + most):
            rows = block.survivors() if on_all or broke else self._nearest(block, self.least)
            spent = block.spent
            fell = block.run(rounds, rows, turn)
            idle, broke = 0 if fell else idle + 1, broke + fell
            if block.spent == spent or (idle == enough and (self.until or not self.passes)):
                break
        if broke and block.detour is None and (on_all or most > 1):  # a single round often breaks some
            block.evidence[ROUGH] = torch.ones_like(block.evidence["fooled"])
        if not block.trusted:
            self._without_gradients(block, before)
        elif block.detour is None and self.passes is None:
            block.run((self.ties,), block.ties(TIED), before)

    def _without_gradients(self, block: SampleBlock, turn: int) -> None:
        """Run the black box on the nearest survivors and, if it breaks one, on all."""
        block.evidence[UNTRUSTED] = torch.ones_like(block.evidence["fooled"])
        if block.run((self.black_box,), self._nearest(block, 1), turn):
            block.run((self.black_box,), block.survivors(), turn + 1)
            block.evidence[BEYOND] = torch.ones_like(block.evidence["fooled"])

    def _nearest(self, block: SampleBlock, least: int) -> Tensor:
        rows = block.survivors()
        return block.nearest(rows, max(least, round(self.share * len(rows))))


@catalogued(paper="vitattack", quick="auto(steps=2, k=2, long=4)", threats=LP_AND_L1)
def auto(
    ball: LpBall,
    *,
    steps: int | None = None,
    k: int | None = None,
    long: int | None = None,
    passes: int | None = None,
    until: Literal["converged"] | None = None,
) -> Auto:
    """AutoAttack's verdict at a fraction of its cost: short runs towards nine classes, then long ones while they pay.

    `steps` margin steps from a corner of the ball towards each of `k` classes, 10 towards 9 (in l1 20 of APGD towards 5); then
    rounds of APGD, `long` steps on the margin and on cross-entropy (50; in l1 100 without a budget), on the quarter nearest
    to the boundary (in l1 the third), and on all samples once a round breaks any (not in l1). Where attention saturates they
    are twice as long, and a view with scaled scores joins them. Near ties get 100 steps towards each of five classes.
    `passes` is a budget per sample, all of which is spent (a small one on fewer steps); until=converged repeats rounds on all
    samples until one breaks none.
    """
    usual = USUAL_IN_L1 if ball.norm == "l1" else USUAL
    steps, k = usual.steps if steps is None else steps, usual.classes if k is None else k
    if long is None:
        long = usual.long if passes is None else USUAL.long
    if passes is not None:
        steps = next(
            (n for n in range(steps, FEWEST, -1) if breadth(short_ascent(ball, n), k).dearest(ball) <= passes // 4),
            min(steps, FEWEST),
        )
    short = short_ascent(ball, steps)

    first = breadth(short, k)
    attack = Auto(
        ball,
        (first,),
        one_round(ball, long),
        (AutoStage("view", replace(short, steps=20), SCALE), *one_round(ball, 2 * long)),
        AutoStage(TAIL, replace(short, steps=4)),
        AutoStage(DETOUR, targets(short, k=k), detour=True),
        AutoStage(BLACK_BOX, square(ball, queries=QUERIES)),
        tie_breaker(ball),
        share=usual.share,
        most=usual.most,
        passes=passes,
        until=until,
    )
    assert set(attack.names) <= set(ALL)
    attack.check_budget(first.dearest(ball) + LOOKS)
    return attack
