"""Accuracy over budgets: the ends of the curve, and verdicts on curves that are wrong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor

from tests.conftest import tiny_vit
from vitattack.analyses.analyze import analyze
from vitattack.analyses.strength.eps_sweep import verdicts
from vitattack.core.errors import UsageError
from vitattack.records.stats import share
from vitattack.threats.lp import LpBall


def test_eps_0_is_clean_and_published_points_stand_beside(toy_images: tuple[Tensor, Tensor]) -> None:
    x, y = toy_images
    wrong = (y[:8] + (Tensor([0, 0, 0, 0, 0, 0, 1, 1]).to(y))) % 10  # two labels the model does not give
    found = analyze(
        "eps-sweep", tiny_vit(), threat="linf:1/255,0", attack="pgd(steps=2)", data=(x[:8], wrong), threads=1
    )
    first, second = found.rows
    assert (first["threat"], first["accuracy"], first["n"]) == ("linf:0", 0.75, 8)
    assert second["threat"] == "linf:1/255" and float(second["accuracy"] or 0) <= 0.75
    assert any("at eps 0 the accuracy is the clean one" in remark for remark in found.remarks)
    table = found.tables()[0]
    assert table.columns == ("threat", "toy", "XCiT-S12")
    assert table.rows[0][2] == "72.3"


def test_verdicts_name_failures() -> None:
    balls = [LpBall("linf", eps) for eps in (0.0, 8 / 255, 64 / 255)]
    clean: Any = SimpleNamespace(clean=share(80, 100))

    def said(*correct: int) -> str:
        return " ".join(
            verdicts(clean, balls, [(ball.eps, share(c, 100)) for ball, c in zip(balls, correct, strict=True)])
        )

    assert "as it should" in said(80, 40, 0)
    assert "the attack fails at the larger budget" in said(80, 20, 40)
    assert "may be masked" in said(80, 40, 5)
    assert "NOT the clean one" in said(70, 40, 0)
    short: Any = verdicts(clean, balls[:2], [(0.0, share(80, 100)), (8 / 255, share(40, 100))])
    assert "was not asked" in " ".join(short)


def test_other_threats_are_refused(toy_images: tuple[Tensor, Tensor]) -> None:
    for threat in ("linf:8/255,l2:0.5", "spatial"):
        with pytest.raises(UsageError, match="one norm"):
            analyze("eps-sweep", tiny_vit(), threat=threat, data=toy_images, threads=1)
