"""Words that let each analysis run in about a second, for the tests that hold for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Quick(NamedTuple):
    """Parameters, budgets and the number of models of an analysis that is to be quick."""

    parameters: Mapping[str, Any] = MappingProxyType({})
    threat: str | None = None
    models: int = 1
    tora: bool = False  # whether it is about TORA-ViTs


SHORT_SEARCH = {"inner": "pgd(steps=1)", "search": "restarts=1, batches=1, batch=2, steps=1, rank_steps=1, keep=1"}

QUICK = {
    "effectiveness": Quick({"steps": (1, 2), "oracle": 3, "seeds": 2}, models=2),
    "convergence": Quick({"steps": (1, 2), "restarts": 2, "long": 3}),
    "pgd-steps": Quick({"steps": (1, 2)}),
    "eps-sweep": Quick({"attack": "pgd(steps=1)"}, "linf:0,8/255"),
    "curve": Quick({"norm": "l2", "attacks": ("fmn(steps=3)", "ddn(steps=2)")}),
    "patch-certificate": Quick({"attack": "patch_pgd(steps=1)", "across": 1}),
    "semantic": Quick({"steps": 1, "pictures": 1}, models=2),
    "features": Quick({"steps": 1, "classes": (0, 3), "seeds": 2}, models=2),
    "lesion": Quick({"draws": 2, "parts": ("block",)}, models=2),
    "correlation": Quick(),
    "cka": Quick(models=2),
    "restricted": Quick({"distances": (1,)}),
    "eigencam": Quick({"attack": "pgd(steps=1)", "pictures": 1}),
    "attention-map": Quick({"attack": "pgd(steps=1)", "pictures": 1}),
    "softmax-gaps": Quick(SHORT_SEARCH),
    "scaled-blocks": Quick(SHORT_SEARCH),
    "aas-depth": Quick(SHORT_SEARCH),
    "aas-steps": Quick({**SHORT_SEARCH, "inner": "pgd(steps={steps})", "steps": (1,)}),
    "aas-eps": Quick(SHORT_SEARCH, "linf:8/255"),
    "gates": Quick({"attack": "pgd(steps=1)", "pictures": 1}, models=2, tora=True),
    "corruptions": Quick({"kinds": ("contrast", "fog"), "severities": (2,)}),
}
