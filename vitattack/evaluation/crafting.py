"""One call of an attack, with its passes counted and models without gradients refused in one line."""

from __future__ import annotations

from torch import Tensor

from vitattack.attacks.base import Attack, Crafted
from vitattack.core.rng import SampleRng
from vitattack.models.lost_gradients import lost_gradients_named, require_gradient
from vitattack.models.passes import Passes, counting_passes
from vitattack.models.victim import Victim


def call_attack(attack: Attack, victim: Victim, x: Tensor, y: Tensor, rng: SampleRng) -> tuple[Crafted, Passes]:
    """Candidates with evidence, and the passes they took."""
    with counting_passes(victim) as passes, lost_gradients_named(victim, x):
        crafted = attack(victim, x, y, rng=rng)
    if not attack.traits.without_gradient:
        require_gradient(victim, x, passes)
    return crafted, passes
