"""`vitattack.attack`: an attack to be called on a module, images and labels."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from vitattack.attacks import attack_text
from vitattack.attacks.base import Attack, Crafted
from vitattack.core.rng import SampleRng
from vitattack.evaluation.crafting import call_attack
from vitattack.evaluation.setup import DEFAULT_THREAT
from vitattack.models.lost_gradients import lost_gradients_named
from vitattack.models.victim import as_victim, check_pixels
from vitattack.threats.base import Threat, parse_threat


@dataclass(frozen=True)
class Crafter:
    """An attack and its threat, callable on any module: `attack("pgd", threat="linf:8/255")(module, x, y)`."""

    text: str
    threat: Threat
    attack: Attack

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int = 0) -> Crafted:
        """Candidates inside the budget, with the attack's own evidence; only `evaluate` judges them."""
        victim = as_victim(model, x)
        x, _ = check_pixels(x, "images")
        rng = SampleRng(seed, tuple(range(len(x))))
        with lost_gradients_named(victim, x):
            prepared = self.attack.prepare(victim, lambda: (x[:0], y[:0]), rng=rng.child("prepare"))
        return call_attack(prepared, victim, x, y, rng)[0]


def attack(text: str, *, threat: str | Threat = DEFAULT_THREAT) -> Crafter:
    """The attack of a text, ready to be called on a module, images in [0,1] and labels."""
    ball = parse_threat(threat) if isinstance(threat, str) else threat
    named = attack_text.parse(text, ball)
    return Crafter(named.text, ball, named.attack)
