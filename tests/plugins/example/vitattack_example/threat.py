"""A threat: one number added to all pixels."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.threats.base import NOTHING, Evidence, ThreatKind


@dataclass(frozen=True)
class Brightness:
    """All pixels brighter or darker by at most `most`, cut off at 0 and 1."""

    most: float
    kind = "brightness"

    def __str__(self) -> str:
        return f"brightness:{self.most:g}"

    def size(self, x: Tensor, x_adv: Tensor) -> Tensor:
        return (x_adv - x).flatten(1).abs().amax(1).double()

    def allows(self, x: Tensor, x_adv: Tensor, evidence: Evidence = NOTHING) -> Tensor:
        inside = ((x_adv >= 0) & (x_adv <= 1)).flatten(1).all(1)
        return inside & (self.size(x, x_adv) <= self.most + 1e-6)


def parse(text: str) -> Brightness:
    try:
        return Brightness(float(text or "0.5"))
    except ValueError:
        raise UsageError(f"'{text}' is no brightness: write brightness:0.5") from None


BRIGHTNESS = ThreatKind(parse, "brightness:0.5")
