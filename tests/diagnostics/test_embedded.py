"""The embedded models read as what they were made to be."""

from __future__ import annotations

import pytest

import vitattack


@pytest.mark.parametrize(
    ("model", "verdict"), [("tiny-vit", "ok"), ("tiny-vit-standard", "ok"), ("tiny-vit-saturated", "saturated")]
)
def test_verdicts_of_the_embedded_models(model: str, verdict: str) -> None:
    diagnosis = vitattack.diagnose(model, limit=16, threads=1).json()
    assert diagnosis["verdict"] == verdict
    flagged = [layer["verdict"] for layer in diagnosis["layers"] if layer["verdict"] != "ok"]
    assert bool(flagged) == (verdict != "ok")
