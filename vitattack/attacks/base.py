"""What an attack is: a frozen value, called with a victim, images, labels and a source of randomness.

`Attack` is everything that callers use, with defaults, so that an attack of your own is a dataclass with a `__call__`.
An attack that holds others says so in `parts` and `with_parts`; `walk` and `mapped` go over the whole tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from vitattack.attacks import stages
from vitattack.attacks.losses import AnyLoss
from vitattack.attacks.price import Asked, Price, Unknown
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.records.section import Run, Section
from vitattack.threats.lp import LpBall

# Calibration images and labels, read only by the attacks that ask for them.
Calibration = Callable[[], tuple[Tensor, Tensor]]
Need = Literal["none", "useful", "required"]
NEEDS: tuple[Need, ...] = ("none", "useful", "required")


class Crafted(NamedTuple):
    """Candidates, and what the attack says of each; only the judge decides.

    Evidence every attack gives: `fooled` (it claims the plain victim errs on this candidate), `first_fooled` (step of
    the first success, -1 for none), `forwards` and `backwards` (passes spent on the sample).
    """

    x_adv: Tensor
    evidence: Mapping[str, Tensor]


@dataclass(frozen=True)
class Traits:
    """What kind of attack it is, as far as its callers have to know."""

    block: int | None = None  # consecutive samples it compares with each other: the unit of resume and of sharding
    plain_only: bool = False  # it looks at the plain victim from several sides and cannot be held behind a view
    unseen: bool = False  # candidates come back without a verdict: whoever goes on from them has to look
    calibration: Need = "none"  # whether `prepare` reads other images
    sources: tuple[str, ...] = ()  # models it asks besides the victim; what they are belongs to the key of the job
    depth: int = 0  # levels of fresh noise, each of which draws from streams of its own
    near_boundary: bool = False  # candidates lie where the model first errs, and so they transfer badly
    second_try: bool = True  # a success that is not confirmed is tried again with other noise
    attention: bool = False  # looks through scaled attention, with a referee's report

    @property
    def learns(self) -> bool:
        """Whether `prepare` wants calibration images."""
        return self.calibration != "none"


# Gradients that vanish on more than this share of the survivors need no probe: gradient attacks were blind.
BLIND = 0.05


@dataclass(frozen=True)
class Assurance:
    """What the survivors of a finished run still meet: `probe` some of them and, if one falls, `full` all of them.

    `price`: passes of a probed sample that stands, its clean forward and the judge's look included. All probed samples
    together cost at most `share` of what the run has cost. The stages of both count on from those of the run.
    """

    probe: Attack
    full: Attack
    price: int
    first_of_probe: int
    first_of_full: int
    share: float = 0.15
    blind: float = BLIND


class Attack(Protocol):
    """A frozen value. What is not overridden is said of an attack that holds no other and learns nothing."""

    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted: ...

    # The tree of attacks.

    @property
    def parts(self) -> tuple[Attack, ...]:
        """The attacks it holds."""
        return ()

    def with_parts(self, parts: Sequence[Attack]) -> Self:
        """The same attack, holding these."""
        return self

    @property
    def traits(self) -> Traits:
        return inherited(self.parts)

    # Once per job.

    def prepare(self, victim: Attackable, calibration: Calibration, *, rng: SampleRng) -> Self:
        """The attack that will be run, after learning what must be learned from calibration images."""
        return self._each(lambda part: part.prepare(victim, calibration, rng=rng))

    def learned(self) -> Any:
        """What `prepare` learned, as plain data to be stored; None for an attack that learns nothing."""
        of_parts = [part.learned() for part in self.parts]
        return of_parts if any(content is not None for content in of_parts) else None

    def recall(self, victim: Attackable, content: Any) -> Self:
        """The prepared attack from what `learned` said: the same on resume and in every shard."""
        return self.with_parts([recall(part, victim, of) for part, of in zip(self.parts, content, strict=True)])

    # Variations.

    def with_loss(self, loss: AnyLoss) -> Self:
        """The same attack with another loss; wrappers pass it inwards, attacks without one refuse."""
        if not self.parts:
            raise UsageError(f"{type(self).__name__} follows no loss that could be replaced: use pgd(loss=...)")
        return self._each(lambda part: part.with_loss(loss))

    def to_the_end(self) -> Self:
        """The same attack making all its own steps for everybody; over the whole tree: `mapped`."""
        return self

    def in_chunks(self, size: int) -> Self:
        """The same attack, asking the model about `size` samples of its block at a time."""
        return self

    def in_half(self) -> Self | None:
        """The same attack, searching in bfloat16 where that finds the same; None where there is no such search."""
        return None

    # What is said of it.

    def doubts(self) -> tuple[str, ...]:
        """What a reader of the number should know about these settings."""
        return tuple(dict.fromkeys(doubt for part in self.parts for doubt in part.doubts()))

    def price(self, asked: Asked) -> Price:
        """The passes of an image that nothing fools; raises `Unknown` where they cannot be told beforehand."""
        raise Unknown

    def stage_names(self, text: str) -> tuple[str, ...]:
        """The names of its stages, as evidence `stage` numbers them; `text` is its canonical text."""
        return ()

    def report(self, run: Run) -> tuple[Section, ...]:
        """What a finished run shows beside its headline; that of parts is left out, as not every sample met them."""
        return stages.section(self.stage_names(run.job.attack), run)

    def aside(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> dict[str, Tensor]:
        """Evidence on samples that the plain victim errs on and that are therefore not attacked."""
        return {}

    @property
    def assurance(self) -> Assurance | None:
        """What the survivors of a finished run still meet."""
        return None

    def _each(self, change: Callable[[Attack], Attack]) -> Self:
        return self.with_parts([change(part) for part in self.parts]) if self.parts else self


class InBall(Attack):
    """An attack that keeps its candidates in an L_p ball of its own."""

    ball: LpBall

    def with_ball(self, ball: LpBall) -> Self:
        """The same attack in another ball; over the whole tree: `mapped`."""
        return replace(self, ball=ball)  # type: ignore[type-var]


class Wrapper(Attack):
    """An attack around one other, `inner`, that is of the same kind as what it holds."""

    inner: Attack

    @property
    def parts(self) -> tuple[Attack, ...]:
        return (self.inner,)

    def with_parts(self, parts: Sequence[Attack]) -> Self:
        (inner,) = parts
        return replace(self, inner=inner)  # type: ignore[type-var]

    @property
    def traits(self) -> Traits:
        return self.inner.traits

    def learned(self) -> Any:
        return self.inner.learned()

    def recall(self, victim: Attackable, content: Any) -> Self:
        return self.with_parts([recall(self.inner, victim, content)])

    def doubts(self) -> tuple[str, ...]:
        return self.inner.doubts()

    def in_chunks(self, size: int) -> Self:
        return self.with_parts([self.inner.in_chunks(size)])

    def in_half(self) -> Self | None:
        inner = self.inner.in_half()
        return None if inner is None else self.with_parts([inner])

    def aside(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> dict[str, Tensor]:
        return self.inner.aside(victim, x, y, rng=rng)

    @property
    def assurance(self) -> Assurance | None:
        return self.inner.assurance


def inherited(parts: Sequence[Attack]) -> Traits:
    """The traits of an attack that holds these and adds nothing of its own."""
    of_parts = [part.traits for part in parts]
    return Traits(
        plain_only=any(traits.plain_only for traits in of_parts),
        calibration=max((traits.calibration for traits in of_parts), key=NEEDS.index, default="none"),
        sources=tuple(dict.fromkeys(source for traits in of_parts for source in traits.sources)),
        depth=max((traits.depth for traits in of_parts), default=0),
    )


def walk(attack: Attack) -> Iterator[Attack]:
    """The attack and everything it holds, from the outside in."""
    yield attack
    for part in attack.parts:
        yield from walk(part)


def mapped(change: Callable[[Attack], Attack], attack: Attack) -> Attack:
    """The attack with `change` made to it and to everything it holds, from the inside out."""
    parts = [mapped(change, part) for part in attack.parts]
    return change(attack.with_parts(parts) if parts else attack)


def recall(attack: Attack, victim: Attackable, content: Any) -> Attack:
    """The prepared attack from what `learned` said."""
    if content is None:  # nothing to learn, but perhaps something to look up
        return attack.prepare(victim, _no_images, rng=SampleRng(0, (0,)))
    return attack.recall(victim, content)


def _no_images() -> tuple[Tensor, Tensor]:
    return torch.empty(0), torch.empty(0, dtype=torch.long)


def refuse_nesting(inner: Attack) -> None:
    """Attacks that look at the plain victim from several sides cannot be looked at through a view themselves."""
    if inner.traits.plain_only:
        raise UsageError(
            "attacks through views (aas, scale, given, fp64, ...) do not hold each other: name them side by side"
        )


def blank_evidence(x: Tensor) -> dict[str, Tensor]:
    """The evidence of an attack that has done nothing yet."""
    count = torch.zeros(len(x), dtype=torch.long, device=x.device)
    return {
        "fooled": torch.zeros_like(count, dtype=torch.bool),
        "first_fooled": count - 1,
        "forwards": count.clone(),
        "backwards": count.clone(),
    }


def blank_search(x: Tensor) -> dict[str, Tensor]:
    """Evidence of an attack that follows gradients and looks at the logits as it goes, before it has begun."""
    return blank_evidence(x) | {
        "zero_grad": torch.zeros(len(x), dtype=torch.bool, device=x.device),
        "margin": torch.full((len(x),), torch.finfo(x.dtype).min, dtype=x.dtype, device=x.device),
    }
