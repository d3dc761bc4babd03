"""What is asked about the strength of attacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vitattack.analyses.base import Analysis
from vitattack.core.errors import UsageError


@dataclass(frozen=True)
class EpsSweep(Analysis):
    """Robust accuracy over growing budgets: whether it falls all the way, and to zero.

    A larger ball holds the smaller one, so that a rise is a failure of the attack; accuracy that stays where every image
    can be destroyed is a sign of masked gradients.
    """

    work: ClassVar[str] = "vitattack.analyses.strength.eps_sweep:sweep"
    paper: ClassVar[str] = "Debenedetti et al. 2023, Fig. 3"
    threat: ClassVar[str | None] = "linf:0,2/255,4/255,6/255,8/255,10/255,12/255,16/255,32/255,64/255"

    attack: str = "pgd(steps=20)"

    def __post_init__(self) -> None:
        if not self.attack:
            raise UsageError("attack= names no attack: write attack=pgd")
