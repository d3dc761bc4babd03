"""Several budgets in one call: a job for each, a curve, and a doubt if the curve rises."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import vitattack
from vitattack.core.errors import UsageError
from vitattack.records.eps_curve import optimiser_failures
from vitattack.records.stats import share
from vitattack.report.evaluation import table
from vitattack.threats.base import parse_threats
from vitattack.threats.lp import LpBall

Images = tuple[Tensor, Tensor]


def test_lists_of_budgets() -> None:
    assert parse_threats("linf:1/255,2/255, 4/255") == tuple(LpBall("linf", k / 255) for k in (1, 2, 4))
    assert parse_threats("linf:8/255,l2:0.5,1") == (LpBall("linf", 8 / 255), LpBall("l2", 0.5), LpBall("l2", 1.0))
    assert [str(threat) for threat in parse_threats("spatial:4px,10deg")] == ["spatial:4px,10deg"]
    for text, cause in (
        ("linf:1/255,1/255", "named twice"),
        ("1/255,2/255", "names no norm"),
        ("linf:1/255,", "not a number"),
    ):
        with pytest.raises(UsageError, match=cause):
            parse_threats(text)


def test_each_budget_is_its_own_run(toy: torch.nn.Module, toy_images: Images, tmp_path: Path) -> None:
    settings = {"data": toy_images, "threads": 1, "out": tmp_path}
    text = "linf:0.5/255,2/255,16/255"
    curve = vitattack.evaluate(toy, ["pgd(steps=3)", "fgsm"], threat=text, **settings)  # type: ignore[arg-type]
    assert len(curve.results) == 6 and len(list(tmp_path.glob("*/result.json"))) == 6
    content = curve.json()
    for point in content["curve"]:
        alone = vitattack.evaluate(toy, ["pgd(steps=3)", "fgsm"], threat=point["threat"], **settings)  # type: ignore[arg-type]
        assert alone.worst_case.json() == point["worst_case"]
    heights = [point["worst_case"]["correct"] for point in content["curve"]]
    assert heights == sorted(heights, reverse=True) and heights[0] > heights[-1]
    assert content["worst_case"]["correct"] <= heights[-1]
    assert content["paired"] == []  # attacks under different budgets are no rivals
    shown = table(curve)
    assert shown.columns[1] == "threat" and len(shown.rows) == 1 + 6 + 3
    assert not [doubt for doubt in curve.doubts if "rises" in doubt]


def test_accuracy_that_rises_with_the_budget_is_doubted() -> None:
    points = [("linf:2/255", share(60, 100)), ("linf:4/255", share(40, 100)), ("linf:8/255", share(55, 100))]
    (line,) = optimiser_failures(points)
    assert "rises from 40.0% at linf:4/255 to 55.0% at linf:8/255" in line
    assert optimiser_failures([("linf:2/255", share(40, 100)), ("linf:4/255", share(44, 100))]) == []  # within chance
    assert optimiser_failures([("linf:2/255", share(40, 100)), ("l2:4", share(90, 100))]) == []  # other balls
    assert optimiser_failures([*reversed(points[1:])]) == optimiser_failures(points[1:])  # in whatever order


def test_stages_are_counted_by_name(toy: torch.nn.Module, toy_images: Images) -> None:
    found = vitattack.evaluate(
        toy, "worst(random, pgd(steps=5), apgd_t(steps=5, k=2))", threat="linf:3/255", data=toy_images, threads=1
    )
    run = found.json()["attacks"][0]
    assert list(run["stages"]) == ["random", "pgd(steps=5)", "apgd_t(steps=5, k=2)"]
    assert sum(run["stages"].values()) == run["fooled"] > 0
    assert any(note.startswith("broken by stage: random") for note in table(found).notes)
