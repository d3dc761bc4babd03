"""Bounds of accuracy under patches: attacked never below certified, and a certificate that is broken ends the analysis."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.test_double_masking import steady
from vitattack.analyses.analyze import analyze
from vitattack.core.errors import VitattackError
from vitattack.models.double_masking import DoubleMasked

SETTINGS: dict[str, Any] = {
    "threat": "patch:2px",
    "across": 3,
    "attack": "patch_pgd(steps=6, place=every(3))",
    "threads": 1,
}


def test_the_bounds_of_the_table_do_not_cross() -> None:
    victim, x, y = steady()
    found = analyze("patch-certificate", victim, data=(x, y), **SETTINGS)
    shares = {row["what"]: float(row["accuracy"] or 0) for row in found.rows}
    certified, attacked, clean = (shares[f"double-masked: {key}"] for key in ("certified", "attacked", "clean"))
    assert 0 < certified <= attacked <= clean


def test_a_certificate_that_an_attack_breaks_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted certifier that vouches for every image, of a victim that changes its answer under some patch."""

    def vouches(self: DoubleMasked, x: Tensor, y: Tensor) -> Tensor:
        return torch.ones_like(y, dtype=torch.bool)

    monkeypatch.setattr(DoubleMasked, "certified", vouches)
    victim, x, y = steady()
    with pytest.raises(VitattackError, match="certified and yet fooled behind double masking"):
        analyze("patch-certificate", victim, data=(x, y), **SETTINGS)
