"""Transfer attack: candidates crafted on another model, the source; the victim gives verdicts only."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from vitattack.attacks.base import (
    Attack,
    Calibration,
    Crafted,
    InBall,
    OneInner,
    Traits,
    blank_evidence,
    inherited_traits,
    recall_attack,
)
from vitattack.attacks.catalogue import catalogued
from vitattack.attacks.losses.base import fools
from vitattack.attacks.price import Price, PriceQuery
from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.models.hugging_face.folder import names_a_folder
from vitattack.models.passes import counting_passes, spread_passes
from vitattack.models.victim import Victim, frozen, model_digest
from vitattack.models.zoo.catalogue import zoo_entries
from vitattack.models.zoo.names import HUB_PREFIXES
from vitattack.threats.lp import LpBall


@dataclass(frozen=True)
class Transfer(InBall, OneInner):
    """Runs the inner attack on the source with the true labels, then asks the victim for verdicts.

    `fooled`, `forwards` and `backwards` are about the victim, as in every attack. Passes through the source and evidence
    of the inner attack have names that begin with `source_`.
    """

    ball: LpBall
    source: str
    inner: Attack

    def __post_init__(self) -> None:
        if not (self.source in zoo_entries() or self.source.startswith(HUB_PREFIXES) or names_a_folder(self.source)):
            raise UsageError(did_you_mean("source model", self.source, [*zoo_entries(), "timm:ARCH.TAG", "FOLDER"]))
        if self.inner.traits.sources:
            raise UsageError("transfer cannot wrap another transfer: name one source, or several in worst(...)")

    @property
    def traits(self) -> Traits:
        # plain only: candidates do not depend on a view of the victim
        near = self.inner.traits.near_boundary
        return replace(inherited_traits(self.parts), plain_only=True, sources=(self.source,), near_boundary=near)

    def price(self, query: PriceQuery) -> Price:
        """Price of one verdict of the victim, and of crafting on the source."""
        return Price(sources=((self.source, self.inner.price(query).victim),)).more(query.look)

    def prepare(self, victim: Attackable, calibration: Calibration, *, rng: SampleRng) -> Transfer:
        source = self._model(victim)
        classes = victim.num_classes
        if classes != source.num_classes:
            raise UsageError(
                f"the source '{self.source}' has {source.num_classes} classes, the victim has {classes}: "
                "choose a source trained on the same classes"
            )

        def at_source_size() -> tuple[Tensor, Tensor]:
            x, y = calibration()
            return resized(x, *source.size), y

        return replace(self, inner=self.inner.prepare(source, at_source_size, rng=rng))

    def learned(self) -> Any:
        return self.inner.learned()

    def recall(self, victim: Attackable, content: Any) -> Transfer:
        return replace(self, inner=recall_attack(self.inner, self._model(victim), content))

    def doubts(self) -> tuple[str, ...]:
        return (*self.inner.doubts(), *boundary_doubts(self.inner))

    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        evidence = blank_evidence(x)
        if len(x) == 0:
            return Crafted(x.clone(), evidence)
        source = self._model(victim, x.device)
        x_source = resized(x.to(source.mean.dtype), *source.size)
        x_source = self.ball.project(x_source, x_source)  # resampling may leave the box by rounding
        with counting_passes(source) as passes:
            crafted = self.inner(source, x_source, y, rng=rng)
        x_adv = carried(self.ball, x, x_source, crafted.x_adv)
        with frozen(victim), torch.no_grad():
            logits = victim(x_adv)
            evidence["fooled"] = fools(victim, x_adv, victim.verdict(x_adv, logits), y)
        evidence["forwards"] += victim.look
        of_source = {"forwards": evidence["backwards"], "backwards": evidence["backwards"], **crafted.evidence}
        of_source["forwards"] = spread_passes(passes.forwards, of_source["forwards"])
        of_source["backwards"] = spread_passes(passes.backwards, of_source["backwards"])
        evidence |= {f"source_{name}": rows for name, rows in of_source.items()}
        evidence["resized"] = torch.full_like(evidence["forwards"], int(x_source.shape != x.shape))
        return Crafted(x_adv, evidence)

    def _model(self, victim: Attackable, device: torch.device | None = None) -> Victim:
        # imported here, since an attack alone does not need the readers of data
        from vitattack.data.imagenet.restricted_victim import restrict_like
        from vitattack.data.reordered_victim import match_labels_of

        place = device or next((t.device for t in [*victim.buffers(), *victim.parameters()]), torch.device("cpu"))
        source = source_model(self.source, str(place))
        return restrict_like(match_labels_of(source, _LABELS.get(source), victim), victim)


@catalogued(
    paper="Papernot et al., 2016; Bhojanapalli et al., ICCV 2021",
    quick='transfer("tiny-vit-standard", pgd(steps=3))',
    black_box=True,
)
def transfer(ball: LpBall, source: str, inner: Attack) -> Transfer:
    """Transfer attack: the inner attack crafts on another model, the victim judges the candidates.

    The source is a quoted text, a model of the zoo, of a hub, or a folder: transfer("tiny-cnn-standard",
    pgd(stop=never)). Candidates that stop at their first
    success on the source transfer poorly; stop=never makes all steps. If input sizes differ, images and perturbations
    are resized.
    """
    return Transfer(ball, source, inner)


_LABELS: WeakKeyDictionary[Victim, tuple[str, ...]] = WeakKeyDictionary()  # names of the classes of source models


@lru_cache(maxsize=8)
def source_model(text: str, device: str) -> Victim:
    """Load a source model, once per process, without changing the global random state."""
    from vitattack.models.zoo.load import load_model

    with torch.random.fork_rng(devices=[]):
        loaded = load_model(text, torch.device(device))
    if loaded.labels is not None:
        _LABELS[loaded.victim] = loaded.labels
    return loaded.victim


@lru_cache(maxsize=64)
def source_digest(text: str) -> str:
    """Digest of a source model, and of the names of its classes, which put these in the order of the victim's."""
    source = source_model(text, "cpu")
    digest, labels = model_digest(source), _LABELS.get(source)
    return digest if labels is None else hashlib.sha256(f"{digest}|{labels}".encode()).hexdigest()


def resized(x: Tensor, height: int, width: int | None = None) -> Tensor:
    """Resize images bilinearly (to a square unless a width is given), with antialiasing where they shrink."""
    size = (height, height if width is None else width)
    if x.shape[-2:] == size or len(x) == 0:
        return x
    return F.interpolate(x, size=size, mode="bilinear", align_corners=False, antialias=True)


def carried(ball: LpBall, x: Tensor, x_source: Tensor, x_adv: Tensor) -> Tensor:
    """Move candidates crafted around `x_source`, the images at the source's size and precision, to around `x`.

    The perturbation is resized and not the candidate, whose blur from resizing twice would use up the budget.
    """
    if x_adv.shape == x.shape and x_adv.dtype == x.dtype:
        return x_adv
    return ball.project(x, x + resized((x_adv - x_source).to(x.dtype), *x.shape[-2:]))


def boundary_doubts(attack: Attack) -> tuple[str, ...]:
    """Doubt about attacks that stop at the first success on the source or minimise a norm."""
    if not attack.traits.near_boundary:
        return ()
    return (
        "crafting stops where the source first errs, and such candidates transfer poorly: use a single attack that makes "
        "all its steps, such as pgd(stop=never)",
    )
