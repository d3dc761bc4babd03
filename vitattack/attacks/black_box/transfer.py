"""Candidates crafted on another model, the source; the victim is asked for a verdict and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitattack.attacks import losses
from vitattack.attacks.auto.attack import Auto
from vitattack.attacks.autoattack.reference import Reference
from vitattack.attacks.base import (
    Attack,
    Calibration,
    Crafted,
    blank_evidence,
    learned,
    learns,
    look_price,
    recall,
    sources,
)
from vitattack.attacks.black_box.square import Square
from vitattack.attacks.catalogue import register
from vitattack.attacks.compose import Stages
from vitattack.attacks.gradient.targets import Targets
from vitattack.attacks.losses import AnyLoss
from vitattack.attacks.minimum_norm.cw_l2 import CWL2
from vitattack.attacks.minimum_norm.fab import FAB
from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.core.rng import SampleRng
from vitattack.models.passes import counting, share
from vitattack.models.victim import Victim, digest, frozen
from vitattack.models.zoo.entries import entries
from vitattack.threats.lp import LpBall


@dataclass(frozen=True)
class Transfer:
    """Runs the inner attack on the source, with the true labels; the victim looks at what came out.

    `fooled`, `forwards` and `backwards` are about the victim, as in every attack. What the source spent and all that the
    inner attack says is evidence under names that begin with `source_`.
    """

    ball: LpBall
    source: str
    inner: Attack
    plain_only = True  # through a view of the victim the same candidates would come out

    def __post_init__(self) -> None:
        if self.source not in entries() and not self.source.startswith(("timm:", "hf-hub:")):
            raise UsageError(did_you_mean("source model", self.source, [*entries(), "timm:ARCH.TAG"]))
        if sources(self.inner):
            raise UsageError("transfer does not hold another transfer: name one source, or several in worst(...)")

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,)

    @property
    def learns(self) -> bool:
        return learns(self.inner)

    def prepare(self, victim: nn.Module, calibration: Calibration, *, rng: SampleRng) -> Transfer:
        source = self._model(victim)
        classes = getattr(victim, "num_classes", source.num_classes)
        if classes != source.num_classes:
            raise UsageError(
                f"the source '{self.source}' has {source.num_classes} classes, the victim has {classes}: "
                "choose a source trained for the same ones"
            )

        def of_its_size() -> tuple[Tensor, Tensor]:
            x, y = calibration()
            return resized(x, source.input_size), y

        return replace(self, inner=self.inner.prepare(source, of_its_size, rng=rng))

    def learned(self) -> Any:
        return learned(self.inner)

    def recall(self, victim: nn.Module, content: Any) -> Transfer:
        return replace(self, inner=recall(self.inner, self._model(victim), content))

    def with_loss(self, loss: AnyLoss) -> Transfer:
        return replace(self, inner=self.inner.with_loss(loss))

    def doubts(self) -> tuple[str, ...]:
        return (*self.inner.doubts(), *hurried(self.inner))

    def __call__(self, victim: Any, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        evidence = blank_evidence(x)
        if len(x) == 0:
            return Crafted(x.clone(), evidence)
        source = self._model(victim, x.device)
        seen = resized(x.to(source.mean.dtype), source.input_size)
        seen = self.ball.project(seen, seen)  # resampling may step out of the box by rounding
        with counting(source) as passes:
            crafted = self.inner(source, seen, y, rng=rng)
        x_adv = carried(self.ball, x, seen, crafted.x_adv)
        with frozen(victim), torch.no_grad():
            logits = victim(x_adv)
            evidence["fooled"] = ~losses.correct(victim.verdict(x_adv, logits), y)
        evidence["forwards"] += look_price(victim)
        said = {"forwards": evidence["backwards"], "backwards": evidence["backwards"], **crafted.evidence}
        said["forwards"] = share(passes.forwards, said["forwards"])
        said["backwards"] = share(passes.backwards, said["backwards"])
        evidence |= {f"source_{name}": rows for name, rows in said.items()}
        evidence["resized"] = torch.full_like(evidence["forwards"], int(seen.shape != x.shape))
        return Crafted(x_adv, evidence)

    def _model(self, victim: nn.Module, device: torch.device | None = None) -> Victim:
        from vitattack.data.imagenet.classes import asked_like  # an attack alone does not need the readers of data

        place = device or next((t.device for t in [*victim.buffers(), *victim.parameters()]), torch.device("cpu"))
        return asked_like(source_model(self.source, str(place)), victim)


@register(
    "transfer",
    paper="Papernot et al., 2016; Bhojanapalli et al., ICCV 2021",
    quick='transfer("tiny-vit-standard", pgd(steps=3))',
    black_box=True,
)
def transfer(ball: LpBall, source: str, inner: Attack) -> Transfer:
    """The inner attack crafted on another model of the zoo, its candidates shown to the victim.

    The source is a quoted text: transfer("tiny-cnn-standard", pgd(stop=never)). Candidates that stop at their first
    success on the source transfer badly; stop=never makes all steps. Between input sizes images and changes are resized.
    """
    return Transfer(ball, source, inner)


@lru_cache(maxsize=8)
def source_model(text: str, device: str) -> Victim:
    """A source, loaded once; the world's random state is left as found."""
    from vitattack.models.zoo import load as zoo  # it knows the names of attacks

    with torch.random.fork_rng(devices=[]):
        return zoo.load(text, torch.device(device)).victim


@lru_cache(maxsize=64)
def source_digest(text: str) -> str:
    """What a source's weights hash to."""
    return digest(source_model(text, "cpu"))


def resized(x: Tensor, height: int, width: int | None = None) -> Tensor:
    """Images of another size (square unless a width is given), bilinear.

    Where they shrink, each pixel is the mean of what it stands for.
    """
    size = (height, height if width is None else width)
    if x.shape[-2:] == size or len(x) == 0:
        return x
    return F.interpolate(x, size=size, mode="bilinear", align_corners=False, antialias=True)


def carried(ball: LpBall, x: Tensor, seen: Tensor, x_adv: Tensor) -> Tensor:
    """Candidates around `x` from those crafted around `seen`, the same images at the source's size and precision.

    The change is resized and not the candidate, or the blur of going there and back would use up the budget.
    """
    if x_adv.shape == x.shape and x_adv.dtype == x.dtype:
        return x_adv
    return ball.project(x, x + resized((x_adv - seen).to(x.dtype), *x.shape[-2:]))


def hurried(attack: Attack) -> tuple[str, ...]:
    """A doubt about attacks that go no further than the source's first error, or look for the nearest one."""
    if not _stops_early(attack):
        return ()
    return (
        "crafting ends where the source first errs, and such candidates transfer badly: use one attack that makes all "
        "its steps, such as pgd(stop=never)",
    )


def _stops_early(attack: Any) -> bool:
    if isinstance(attack, Stages):
        return len(attack.attacks) > 1 or _stops_early(attack.attacks[0])
    if isinstance(attack, Auto | Square | FAB | CWL2 | Reference) or _aims_often(attack):
        return True
    if hasattr(attack, "inner"):
        return _stops_early(attack.inner)
    return bool(getattr(attack, "stop", "never") != "never")


def _aims_often(attack: Any) -> bool:
    return isinstance(attack, Targets) and attack.k > 1 and attack.which != "second"
