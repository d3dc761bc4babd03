"""The kinds of figures, by the names under which they are asked for."""

from __future__ import annotations

from typing import Literal

Kind = Literal["accuracy", "passes", "distance", "budget", "stages", "referee", "transfer", "spatial", "softmax"]
KINDS: dict[Kind, str] = {
    "accuracy": "robust accuracy with intervals, a line per attack",
    "passes": "survivors against the passes spent on each image",
    "distance": "survivors against the smallest change, of minimum-norm attacks",
    "budget": "robust accuracy against eps, from runs under several budgets",
    "stages": "what each stage of an attack broke, and what it cost",
    "referee": "the accuracies of an AAS run, by both protocols",
    "transfer": "accuracy on candidates crafted on other models",
    "spatial": "the shifts and rotations that fooled images",
    "softmax": "gaps between attention scores, block by block",
}
