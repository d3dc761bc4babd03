"""What an attack is: a frozen value, called with a victim, images, labels and a source of randomness."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from vitattack.attacks.losses import AnyLoss
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng

# Calibration images and labels, read only by the attacks that ask for them.
Calibration = Callable[[], tuple[Tensor, Tensor]]


class Victim(Protocol):
    """Pixels in [0,1] to logits. `verdict` gives the logits of the plain model: a view never speaks for it."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def verdict(self, x: Tensor, logits: Tensor) -> Tensor: ...


class Crafted(NamedTuple):
    """Candidates, and what the attack says of each; only the judge decides.

    Evidence every attack gives: `fooled` (it claims the plain victim errs on this candidate), `first_fooled` (step of
    the first success, -1 for none), `forwards` and `backwards` (passes spent on the sample).
    """

    x_adv: Tensor
    evidence: Mapping[str, Tensor]


@runtime_checkable
class Attack(Protocol):
    def prepare(self, victim: nn.Module, calibration: Calibration, *, rng: SampleRng) -> Attack:
        """Once per job: what must be learned from calibration images. Returns the attack that will be run."""

    def __call__(self, victim: nn.Module, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted: ...

    def with_loss(self, loss: AnyLoss) -> Attack:
        """The same attack with another loss; wrappers pass it inwards, attacks without one refuse."""

    def doubts(self) -> tuple[str, ...]:
        """What a reader of the number should know about these settings."""


class Leaf:
    """An attack that holds no other, learns nothing beforehand and has nothing to say against its settings."""

    def prepare(self, victim: nn.Module, calibration: Calibration, *, rng: SampleRng) -> Self:
        return self

    def doubts(self) -> tuple[str, ...]:
        return ()


# Optional members that give the attack itself in another form: a holder goes on holding what comes of it.
REMADE = ("in_chunks", "in_half")


class Holder:
    """What an attack that holds one other attack, `inner`, says of itself by asking it."""

    inner: Attack

    def __post_init__(self) -> None:
        if getattr(type(self), "plain_only", False):  # its own: one that is merely held says no more than it is
            refuse_nesting(self.inner)

    def prepare(self, victim: nn.Module, calibration: Calibration, *, rng: SampleRng) -> Self:
        return self._with(self.inner.prepare(victim, calibration, rng=rng))

    @property
    def learns(self) -> bool:
        return learns(self.inner)

    def learned(self) -> Any:
        return learned(self.inner)

    def recall(self, victim: nn.Module, content: Any) -> Self:
        return self._with(recall(self.inner, victim, content))

    def with_loss(self, loss: AnyLoss) -> Self:
        return self._with(self.inner.with_loss(loss))

    def doubts(self) -> tuple[str, ...]:
        return self.inner.doubts()

    def __getattr__(self, name: str) -> Any:
        """Optional members, such as `aside` and `plain_only`, are those of the inner attack."""
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        found = getattr(self.inner, name)
        if name in REMADE:
            return lambda *given: self._with(found(*given))
        return found

    def _with(self, inner: Attack) -> Self:
        return replace(self, inner=inner)  # type: ignore[type-var]


def blank_evidence(x: Tensor) -> dict[str, Tensor]:
    """Evidence of nothing done yet."""
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


def look_price(victim: nn.Module) -> int:
    """Forwards of one look at a sample, its verdict included: views ask several times, and the plain victim besides."""
    return int(getattr(victim, "answers", 1)) + int(getattr(victim, "verdict_forwards", 0))


def learns(attack: Attack) -> bool:
    """Whether `prepare` wants calibration images."""
    return bool(getattr(attack, "learns", False))


def needs_calibration(attack: Attack) -> bool:
    """Whether it cannot do without them: one that `guesses` runs with whatever `prepare` finds."""
    return learns(attack) and not getattr(attack, "guesses", False)


def sources(attack: Attack) -> tuple[str, ...]:
    """Models besides the victim that an attack asks: what they are belongs to the key of its job."""
    return tuple(getattr(attack, "sources", ()))


def refuse_nesting(inner: Attack) -> None:
    """Attacks that look at the plain victim from several sides cannot be looked at through a view themselves."""
    if getattr(inner, "plain_only", False):
        raise UsageError(
            "attacks through views (aas, scale, given, fp64, ...) do not hold each other: name them side by side"
        )


def depth(attack: Any) -> int:
    """How many levels of fresh noise it holds: each draws from streams of its own."""
    own = getattr(attack, "depth", None)
    if own is not None:
        return int(own)
    return depth(attack.inner) if hasattr(attack, "inner") else 0


def learned(attack: Attack) -> Any:
    """What `prepare` found, as plain data to be stored; None for an attack that learns nothing."""
    tell = getattr(attack, "learned", None)
    return tell() if tell else None


def recall(attack: Attack, victim: nn.Module, content: Any) -> Attack:
    """The prepared attack from what `learned` told: the same on resume and in every shard."""
    if content is None:  # nothing to learn, but perhaps something to look up
        return attack.prepare(victim, _none, rng=SampleRng(0, (0,)))
    prepared: Attack = attack.recall(victim, content)  # type: ignore[attr-defined]
    return prepared


def _none() -> tuple[Tensor, Tensor]:
    return torch.empty(0), torch.empty(0, dtype=torch.long)
