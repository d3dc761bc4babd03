"""`vitattack.attack`: an attack to be called on a module, images and labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vitattack.attacks import attack_text
from vitattack.attacks.base import Attack, Crafted, blank_evidence
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.data.formats.row_sources import TensorSource
from vitattack.data.in_memory import as_tensors
from vitattack.evaluation.crafting import call_attack
from vitattack.evaluation.setup import DEFAULT_THREAT
from vitattack.models.lost_gradients import lost_gradients_named
from vitattack.models.victim import Victim, as_victim, check_labels, check_module, check_pixels
from vitattack.text.syntax import AttackSyntax
from vitattack.threats.base import Threat, parse_threat

if TYPE_CHECKING:
    import numpy as np

    Array = Tensor | np.ndarray[Any, Any]


@dataclass(frozen=True)
class Crafter:
    """An attack and its threat, callable on any module: `attack("pgd", threat="linf:8/255")(module, x, y)`."""

    syntax: AttackSyntax
    threat: Threat
    attack: Attack

    @property
    def text(self) -> str:
        return self.syntax.text

    @torch.inference_mode(False)
    def __call__(self, model: nn.Module, x: Array, y: Array, *, seed: int = 0) -> Crafted:
        """Candidates inside the budget, with the attack's own evidence; only `evaluate` judges them.

        Images are floats in [0,1] of (N, C, H, W) and labels integers, as tensors or arrays; what comes back are tensors of
        the precision of the model, without gradients. No image at all is allowed. Callers may sit in `no_grad` or
        `inference_mode`.
        """
        check_module(model)
        images, labels = as_tensors(x, y)
        if len(images) == 0 == len(labels):
            return Crafted(images, blank_evidence(images))
        TensorSource.check(images, labels)
        images, labels = images.to(model.mean.dtype if isinstance(model, Victim) else torch.float32), labels.long()
        victim = as_victim(model, images)
        images, _ = check_pixels(images, "images")
        check_labels(labels, victim)
        rng = SampleRng(seed, tuple(range(len(images))))
        with lost_gradients_named(victim, images):
            prepared = self.attack.prepare(victim, lambda: (images[:0], labels[:0]), rng=rng.child("prepare"))
        return call_attack(prepared, victim, images, labels, rng)[0]


def attack(text: str, *, threat: str | Threat = DEFAULT_THREAT) -> Crafter:
    """The attack of a text, ready to be called on a module, images in [0,1] and labels, or to be named to `evaluate`."""
    ball = parse_threat(threat) if isinstance(threat, str) else threat
    named = attack_text.parse(text, ball)
    return Crafter(named.syntax, ball, named.attack)


def attack_source(given: Any, budgets: tuple[Threat, ...]) -> AttackSyntax:
    """The attack that a text or an `attack(...)` object names."""
    if isinstance(given, Crafter):
        if given.threat not in budgets:
            threats = ", ".join(map(str, budgets))
            raise UsageError(
                f"attack '{given.text}' was made for {given.threat}, the evaluation is of {threats}: name one"
            )
        return given.syntax
    if not isinstance(given, str | AttackSyntax):
        raise UsageError(
            f"an attack is a {type(given).__name__}: give a text such as 'pgd(steps=20)', or register it as a plug-in"
        )
    return AttackSyntax.of(given)
