"""Unions of threats: each norm runs on its own, and an image counts as robust if it stands under all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

from vitattack.bench.cells import cells
from vitattack.bench.compare import worst_cases
from vitattack.bench.read.benchmark_file import read_benchmark
from vitattack.bench.run.results import BenchmarkResult, CellResult
from vitattack.core.errors import UsageError
from vitattack.evaluation.evaluate import evaluate
from vitattack.models.victim import Victim
from vitattack.records.stats import Verdict, share
from vitattack.report.bench_tables import bench_tables
from vitattack.report.evaluation import tables
from vitattack.report.run_grid import run_grid
from vitattack.threats.base import parse_threats

UNION = "linf:0.1+l2:0.01+l1:0.5"


class ByImage(nn.Module):
    """Looks at the mean of an image, or at its first pixel alone where the second one is bright."""

    def forward(self, x: Tensor) -> Tensor:
        pixels = x.flatten(1)
        score = torch.where(pixels[:, 1] > 0.75, pixels[:, 0] - 0.8, pixels.mean(1) - 0.55)
        return torch.stack([-score, score], 1)


def images() -> tuple[Tensor, Tensor]:
    """Of four images the first falls in linf, the second in l1, the third is too dark for either, the last is misclassified."""
    x = torch.full((4, 3, 8, 8), 0.5)
    x[1, 0, 0, 1], x[2], x[3] = 0.9, 0.2, 0.6
    return x, torch.zeros(4, dtype=torch.long)


@pytest.fixture
def run(tmp_path: Path) -> Any:
    victim = Victim(ByImage(), name="by-image", num_classes=2, input_size=8)
    return lambda threat, **more: evaluate(
        victim, "apgd(steps=20)", data=images(), threat=threat, out=tmp_path, batch_size=2, threads=1, **more
    )


def test_an_image_stands_if_it_stands_under_every_norm(run: Any) -> None:
    evaluation = run(UNION)
    assert evaluation.threats == ("linf:0.1", "l2:0.01", "l1:0.5")
    standing = [{r.index for r in result.records if r.status == "robust"} for result in evaluation.results]
    assert standing == [{1, 2}, {0, 1, 2}, {0, 2}]
    assert evaluation.union is not None and (evaluation.union.correct, evaluation.union.n) == (1, 4)
    assert evaluation.json()["union"] == evaluation.union.json()
    last = tables(evaluation)[0].rows[-1]
    assert last[:2] == ("worst case", "union") and last[4] == "1/4"
    (grid, _) = run_grid(evaluation.results, ["model"], ["threat", "attack"])
    assert list(grid.columns)[-1] == "union worst case"


def test_budgets_of_one_norm_are_no_union(run: Any) -> None:
    evaluation = run("linf:0.05,0.1")
    assert evaluation.union is None and "union" not in evaluation.json()
    assert "union" not in tables(evaluation)[0].markdown()


def test_a_stopped_union_goes_on(run: Any, tmp_path: Path) -> None:
    """What was finished before the stop is not attacked again, and the numbers are those of a run in one piece."""
    whole = run(UNION, fresh=True)
    (first, cut, *_) = [result.folder for result in whole.results]
    kept = (first / "samples.jsonl").read_bytes()
    records = (cut / "samples.jsonl").read_bytes()
    (cut / "samples.jsonl").write_bytes(records[: len(records) // 2])
    (cut / "result.json").unlink()
    again = run(UNION)
    assert (first / "samples.jsonl").read_bytes() == kept
    assert again.union == whole.union
    assert [r.records for r in again.results] == [r.records for r in whole.results]


@pytest.mark.parametrize(
    ("text", "budgets"),
    [
        ("linf:8/255+l2:0.5+l1:12", ("linf:8/255", "l2:0.5", "l1:12")),
        ("L2:2.5e+0 + linf:8/255", ("l2:2.5", "linf:8/255")),
        ("linf:8/255+spatial:4px,10deg", ("linf:8/255", "spatial:4px,10deg")),
    ],
)
def test_texts_of_unions(text: str, budgets: tuple[str, ...]) -> None:
    assert tuple(map(str, parse_threats(text))) == budgets


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("linf:8/255+linf:4/255", "one budget of each kind"),
        ("linf:4/255,8/255+l2:0.5", "one budget of each kind"),
        ("linf:8/255+l3:0.5", "unknown threat 'l3'"),
        ("linf:8/255+", "is not a number"),
    ],
)
def test_what_is_no_union_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_threats(text)


FILE = {
    "schema": 1,
    "title": "A union",
    "source": "nobody",
    "data": "cifar10-demo[:3]",
    "threats": ["linf:8/255", "linf:8/255+l2:0.5+l1:12"],
    "models": ["tiny-vit", "tiny-cnn-standard"],
    "attacks": ["apgd"],
}
STANDING = {"linf:8/255": [1, 1, 0], "l2:0.5": [1, 0, 1], "l1:12": [1, 1, 1]}


def made(folder: Path, missing: str = "") -> BenchmarkResult:
    path = folder / "union.yaml"
    path.write_text(yaml.safe_dump(FILE))
    bench = read_benchmark(str(path))
    found = []
    for cell in cells(bench):
        stands = STANDING[cell.threat]
        failed = cell.label == "tiny-vit" and cell.threat == missing
        result = CellResult(cell, "failed" if failed else "ok", clean=share(3, 3), robust=share(sum(stands), 3))
        verdicts = {i: Verdict("robust" if stands[i] else "fooled", fragile=False) for i in range(3)}
        result.__dict__["verdicts"] = {} if failed else verdicts
        found.append(result)
    return BenchmarkResult(bench, tuple(found), folder)


def test_a_benchmark_has_a_number_for_the_union(tmp_path: Path) -> None:
    results = made(tmp_path)
    assert results.bench.threats == ("linf:8/255", "l2:0.5", "l1:12") and len(results.cells) == 6
    numbers = worst_cases(results)
    assert [(n.model, n.threat, n.measured.correct) for n in numbers if n.measured] == [
        ("tiny-vit", "linf:8/255+l2:0.5+l1:12", 1),
        ("tiny-cnn-standard", "linf:8/255+l2:0.5+l1:12", 1),
    ]
    columns = bench_tables(results)[0].columns
    assert any("linf:8/255+l2:0.5+l1:12" in column and "worst case" in column for column in columns), columns


def test_a_union_without_one_of_its_threats_has_no_number(tmp_path: Path) -> None:
    assert [number.model for number in worst_cases(made(tmp_path, missing="l1:12"))] == ["tiny-cnn-standard"]


def test_a_threat_or_union_named_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    for threats in (["l2:0.5", "l2:0.5"], ["linf:8/255+l2:0.5", "linf:8/255+l2:0.5"]):
        path.write_text(yaml.safe_dump({**FILE, "threats": threats}))
        with pytest.raises(UsageError, match="stands twice"):
            read_benchmark(str(path))
