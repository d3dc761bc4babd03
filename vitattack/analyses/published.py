"""Numbers that papers print, beside which an analysis shows its own."""

from __future__ import annotations

from dataclasses import dataclass

LIGHT = "Debenedetti et al. 2023"  # A Light Recipe to Train Robust Vision Transformers


@dataclass(frozen=True)
class PublishedCurve:
    """Values of one model over an axis, as a paper gives them; accuracies are shares in [0,1]."""

    model: str
    about: str
    source: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    n: int | None = None

    @property
    def name(self) -> str:
        return f"{self.model} ({self.source})"
