"""The attack protocol: a frozen value, called with a victim, images, labels and a source of randomness.

`Attack` declares everything callers use and has defaults, so a new attack is a dataclass with a `__call__`. An attack
that holds others lists them in `parts` and is rebuilt by `with_parts`; `walk_attacks` and `map_attacks` traverse the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from vitattack.attacks import stages
from vitattack.attacks.losses.base import AnyLoss
from vitattack.attacks.price import Price, PriceQuery, UnknownPrice
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.records.report_section import Run, Section
from vitattack.threats.lp import LpBall

# Loads calibration images and labels; called only by attacks that learn from them.
Calibration = Callable[[], tuple[Tensor, Tensor]]
CalibrationNeed = Literal["none", "useful", "required"]
CALIBRATION_NEEDS: tuple[CalibrationNeed, ...] = ("none", "useful", "required")


class Crafted(NamedTuple):
    """Candidates and per-sample evidence; whether a candidate is adversarial is for the judge to decide.

    Every attack gives the evidence `fooled` (claims that the plain victim misclassifies the candidate), `first_fooled`
    (step of the first success, -1 for none), `forwards` and `backwards` (passes spent on the sample).
    """

    x_adv: Tensor
    evidence: Mapping[str, Tensor]


class DoubtedCrafted(Crafted):
    """Candidates with reasons not to trust what was found, about all samples together."""

    doubts: tuple[str, ...]

    @classmethod
    def of(cls, x_adv: Tensor, evidence: Mapping[str, Tensor], doubts: tuple[str, ...]) -> Self:
        crafted = cls(x_adv, evidence)
        crafted.doubts = doubts
        return crafted


@dataclass(frozen=True)
class Traits:
    """Properties of an attack that its callers act on."""

    block: int | None = None  # consecutive samples it ranks against each other: the unit of resume and of sharding
    plain_only: bool = False  # it makes its own views of the plain victim, so it cannot run behind one
    unverified: bool = False  # candidates come back without a verdict; outer attacks query the victim themselves
    calibration: CalibrationNeed = "none"  # whether `prepare` reads calibration images
    sources: tuple[str, ...] = ()  # models queried besides the victim; their digests are part of the job's key
    depth: int = 0  # nested levels of fresh noise, each with random streams of its own
    near_boundary: bool = False  # candidates lie just across the decision boundary, hence transfer poorly
    without_gradient: bool = False  # it looks for gradients itself, and goes on without
    second_try: bool = True  # an unconfirmed success is retried with other noise
    certified: bool = False  # whether its results carry a certificate: planted examples that it has to find
    attention: bool = False  # attacks through scaled attention and reports as a referee

    @property
    def learns(self) -> bool:
        """Whether `prepare` reads calibration images."""
        return self.calibration != "none"


# With vanishing gradients on more than this share of the survivors, gradient attacks were blind: no probe is needed.
BLIND_SHARE = 0.05


# Evidence of the assurance.
NEAREST = "probed as one of the nearest"  # other probed samples were drawn
UNTRUSTED = "untrusted"  # the model does not do what its gradients promise: the attack ran without them, too
BEYOND = "beyond gradients"  # without gradients it broke samples that gradients had left
ROUGH = "rough"  # repetition broke samples that breadth had left, so that more may be fragile


@dataclass(frozen=True)
class Assurance:
    """Attacks on the survivors of a finished run: `probe` on some of them and, if one falls, `full` on all of them.

    A run that needed more than gradients for all survivors is its own probe. `price` is the passes of a probed survivor,
    its clean forward and the judge's verdict included. As many are probed as `share` of the passes of the run pays for, but
    at least `least`: half of them the nearest to the boundary, the others drawn. Where the run was ROUGH, the share `rough` of
    all survivors that is nearest is probed, whatever it costs. Stages of both attacks are numbered after those of the run.
    """

    probe: Attack
    full: Attack
    price: int
    first_of_probe: int
    first_of_full: int
    share: float = 0.2
    least: int = 2
    rough: float = 1 / 8
    blind: float = BLIND_SHARE


class Attack(Protocol):
    """A frozen value. The defaults describe an attack that holds no other and learns nothing."""

    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted: ...

    # The tree of attacks.

    @property
    def parts(self) -> tuple[Attack, ...]:
        """Inner attacks."""
        return ()

    def with_parts(self, parts: Sequence[Attack]) -> Self:
        """Return the same attack around other inner attacks."""
        return self

    @property
    def traits(self) -> Traits:
        return inherited_traits(self.parts)

    # Once per job.

    def prepare(self, victim: Attackable, calibration: Calibration, *, rng: SampleRng) -> Self:
        """Learn from calibration images where needed, and return the attack to run."""
        return self._map_parts(lambda part: part.prepare(victim, calibration, rng=rng))

    def learned(self) -> Any:
        """Findings of `prepare` as plain data, to be stored; None if there are none."""
        of_parts = [part.learned() for part in self.parts]
        return of_parts if any(content is not None for content in of_parts) else None

    def recall(self, victim: Attackable, content: Any) -> Self:
        """Rebuild the prepared attack from stored findings, identically on resume and in every shard."""
        return self.with_parts(
            [recall_attack(part, victim, findings) for part, findings in zip(self.parts, content, strict=True)]
        )

    # Variations.

    def with_loss(self, loss: AnyLoss) -> Self:
        """Replace the loss; wrappers pass it inwards, attacks without a loss refuse."""
        if not self.parts:
            raise UsageError(f"{type(self).__name__} has no loss to replace: use pgd(loss=...)")
        return self._map_parts(lambda part: part.with_loss(loss))

    def without_early_stop(self) -> Self:
        """Make all steps on all samples; applies to this attack only, use `map_attacks` for the whole tree."""
        return self

    def in_chunks(self, size: int) -> Self:
        """Query the model with `size` samples of a block at a time."""
        return self

    def in_half(self) -> Self | None:
        """Search in bfloat16 where gradients agree with float32; None if the attack has no such search."""
        return None

    # Description and reports.

    def doubts(self) -> tuple[str, ...]:
        """Caveats about these settings, to be shown beside the result."""
        return tuple(dict.fromkeys(doubt for part in self.parts for doubt in part.doubts()))

    def price(self, query: PriceQuery) -> Price:
        """Passes spent on an image that nothing fools; raises `UnknownPrice` if they are not known beforehand."""
        raise UnknownPrice

    def stage_names(self, text: str) -> tuple[str, ...]:
        """Names of the stages that evidence `stage` numbers; `text` is the canonical text of this attack."""
        return ()

    def report(self, run: Run) -> tuple[Section, ...]:
        """Sections of a finished run; inner attacks add none, since not every sample met them."""
        return stages.stage_section(self.stage_names(run.job.attack), run)

    def on_misclassified(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> dict[str, Tensor]:
        """Evidence on samples that the plain victim misclassifies and that are therefore not attacked."""
        return {}

    @property
    def assurance(self) -> Assurance | None:
        """Further attacks on the survivors of a finished run."""
        return None

    def _map_parts(self, change: Callable[[Attack], Attack]) -> Self:
        return self.with_parts([change(part) for part in self.parts]) if self.parts else self


class InBall(Attack):
    """An attack with an L_p budget of its own."""

    ball: LpBall

    def with_ball(self, ball: LpBall) -> Self:
        """Replace the ball of this attack; use `map_attacks` for the whole tree."""
        return replace(self, ball=ball)  # type: ignore[type-var]


class OneInner(Attack):
    """An attack around one `inner` attack that it calls in its own way, so that no offer of it can be taken over."""

    inner: Attack

    @property
    def parts(self) -> tuple[Attack, ...]:
        return (self.inner,)

    def with_parts(self, parts: Sequence[Attack]) -> Self:
        (inner,) = parts
        return replace(self, inner=inner)  # type: ignore[type-var]


class Wrapper(OneInner):
    """An attack around one `inner` attack whose traits and offers it takes over."""

    @property
    def traits(self) -> Traits:
        return self.inner.traits

    def learned(self) -> Any:
        return self.inner.learned()

    def recall(self, victim: Attackable, content: Any) -> Self:
        return self.with_parts([recall_attack(self.inner, victim, content)])

    def doubts(self) -> tuple[str, ...]:
        return self.inner.doubts()

    def in_chunks(self, size: int) -> Self:
        return self.with_parts([self.inner.in_chunks(size)])

    def in_half(self) -> Self | None:
        inner = self.inner.in_half()
        return None if inner is None else self.with_parts([inner])

    def on_misclassified(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> dict[str, Tensor]:
        return self.inner.on_misclassified(victim, x, y, rng=rng)

    @property
    def assurance(self) -> Assurance | None:
        return self.inner.assurance


def inherited_traits(parts: Sequence[Attack]) -> Traits:
    """Combine the traits of inner attacks into those of a wrapper with none of its own."""
    of_parts = [part.traits for part in parts]
    return Traits(
        plain_only=any(traits.plain_only for traits in of_parts),
        calibration=max((traits.calibration for traits in of_parts), key=CALIBRATION_NEEDS.index, default="none"),
        sources=tuple(dict.fromkeys(source for traits in of_parts for source in traits.sources)),
        depth=max((traits.depth for traits in of_parts), default=0),
    )


def walk_attacks(attack: Attack) -> Iterator[Attack]:
    """Yield the attack and all attacks inside it, outermost first."""
    yield attack
    for part in attack.parts:
        yield from walk_attacks(part)


def map_attacks(change: Callable[[Attack], Attack], attack: Attack) -> Attack:
    """Apply `change` to the attack and to all attacks inside it, innermost first."""
    parts = [map_attacks(change, part) for part in attack.parts]
    return change(attack.with_parts(parts) if parts else attack)


def recall_attack(attack: Attack, victim: Attackable, content: Any) -> Attack:
    """Rebuild a prepared attack from stored findings; without any, prepare it without images."""
    if content is None:  # nothing was learned, but `prepare` may still look up the number of classes
        return attack.prepare(victim, _no_images, rng=SampleRng(0, (0,)))
    return attack.recall(victim, content)


def _no_images() -> tuple[Tensor, Tensor]:
    return torch.empty(0), torch.empty(0, dtype=torch.long)


def refuse_nesting(inner: Attack) -> None:
    """Refuse to run an attack behind a view if it makes its own views of the plain victim."""
    if inner.traits.plain_only:
        raise UsageError(
            "attacks through views (aas, scale, given, fp64, ...) do not hold each other: name them side by side"
        )


def blank_evidence(x: Tensor) -> dict[str, Tensor]:
    """Evidence before the first step of any attack."""
    count = torch.zeros(len(x), dtype=torch.long, device=x.device)
    return {
        "fooled": torch.zeros_like(count, dtype=torch.bool),
        "first_fooled": count - 1,
        "forwards": count.clone(),
        "backwards": count.clone(),
    }


def blank_search(x: Tensor) -> dict[str, Tensor]:
    """Evidence before the first step of an attack that records gradients and margins."""
    return blank_evidence(x) | {
        "zero_grad": torch.zeros(len(x), dtype=torch.bool, device=x.device),
        "margin": torch.full((len(x),), torch.finfo(x.dtype).min, dtype=x.dtype, device=x.device),
    }
