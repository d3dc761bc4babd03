"""Robustness evaluation and attack benchmarks for Vision Transformers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitattack.analyses.analyze import analyze as analyze
    from vitattack.analyses.findings import Findings as Findings
    from vitattack.attacks.base import Crafted as Crafted
    from vitattack.checks.check import Checked as Checked
    from vitattack.checks.check import check as check
    from vitattack.core.errors import UsageError as UsageError
    from vitattack.core.errors import VitattackError as VitattackError
    from vitattack.diagnostics.diagnose import Diagnosis as Diagnosis
    from vitattack.diagnostics.diagnose import diagnose as diagnose
    from vitattack.evaluation.callable_attack import attack as attack
    from vitattack.evaluation.evaluate import evaluate as evaluate
    from vitattack.evaluation.verify import verify as verify
    from vitattack.models.victim import Victim as Victim
    from vitattack.named import list_attacks as list_attacks
    from vitattack.named import list_models as list_models
    from vitattack.named import load_data as load_data
    from vitattack.named import load_model as load_model
    from vitattack.named import register as register
    from vitattack.records.comparison_words import compare as compare
    from vitattack.records.result import Evaluation as Evaluation
    from vitattack.records.stored_runs import runs as runs
    from vitattack.threats.lp import LpBall as LpBall

    __version__: str

# Imported on first use (PEP 562), so that `import vitattack` and `vitattack --help` load no torch.
_PUBLIC = {
    "load_model": "vitattack.named",
    "load_data": "vitattack.named",
    "list_models": "vitattack.named",
    "list_attacks": "vitattack.named",
    "register": "vitattack.named",
    "evaluate": "vitattack.evaluation.evaluate",
    "check": "vitattack.checks.check",
    "Checked": "vitattack.checks.check",
    "attack": "vitattack.evaluation.callable_attack",
    "verify": "vitattack.evaluation.verify",
    "analyze": "vitattack.analyses.analyze",
    "Findings": "vitattack.analyses.findings",
    "runs": "vitattack.records.stored_runs",
    "compare": "vitattack.records.comparison_words",
    "Evaluation": "vitattack.records.result",
    "diagnose": "vitattack.diagnostics.diagnose",
    "Diagnosis": "vitattack.diagnostics.diagnose",
    "Crafted": "vitattack.attacks.base",
    "Victim": "vitattack.models.victim",
    "LpBall": "vitattack.threats.lp",
    "VitattackError": "vitattack.core.errors",
    "UsageError": "vitattack.core.errors",
}
__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    if name == "__version__":
        from vitattack.core.versions import package_version

        return package_version("vitattack") or "unknown"
    raise AttributeError(f"module 'vitattack' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
