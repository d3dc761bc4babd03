"""Robustness evaluation and attack benchmarks for Vision Transformers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitattack.attacks.base import Crafted as Crafted
    from vitattack.diagnostics.underflow import Diagnosis as Diagnosis
    from vitattack.diagnostics.underflow import diagnose as diagnose
    from vitattack.errors import UsageError as UsageError
    from vitattack.errors import VitattackError as VitattackError
    from vitattack.evaluation.api import attack as attack
    from vitattack.evaluation.api import evaluate as evaluate
    from vitattack.evaluation.result import Evaluation as Evaluation
    from vitattack.models.victim import Victim as Victim
    from vitattack.threat import LpBall as LpBall

# Imported on first use (PEP 562), so that `import vitattack` and `vitattack --help` load no torch.
_PUBLIC = {
    "evaluate": "vitattack.evaluation.api",
    "attack": "vitattack.evaluation.api",
    "Evaluation": "vitattack.evaluation.result",
    "diagnose": "vitattack.diagnostics.underflow",
    "Diagnosis": "vitattack.diagnostics.underflow",
    "Crafted": "vitattack.attacks.base",
    "Victim": "vitattack.models.victim",
    "LpBall": "vitattack.threat",
    "VitattackError": "vitattack.errors",
    "UsageError": "vitattack.errors",
}
__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'vitattack' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
