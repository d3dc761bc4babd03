"""Benchmark files whose models are a user's own code: read without running it, run only if the user says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.zoo.own_models import SOURCE
from vitattack.bench.cells import cells
from vitattack.bench.options import BenchOptions
from vitattack.bench.plan.preflight import check_run
from vitattack.bench.read.benchmark_file import read_benchmark
from vitattack.bench.run.stored_cells import fingerprint
from vitattack.bench.tasks import Task, run_task
from vitattack.core.errors import UsageError

TEXT = """
schema: 1
title: own
data: cifar10-demo[:4]
threats: [linf:8/255]
models: [{model: "mine.py:make_model", normalize: none, label: mine}]
attacks: [pgd(steps=1)]
"""


def test_code_of_a_benchmark_needs_consent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(SOURCE.replace('print("imported")', "open('ran', 'w').close()"))
    Path("b.yaml").write_text(TEXT)
    bench = read_benchmark("b.yaml")
    (cell,) = cells(bench)
    with pytest.raises(UsageError, match=r"b.yaml:6: 'mine.py:make_model' runs code: add --unsafe-code if you trust"):
        check_run(bench, (cell,), BenchOptions())
    assert not Path("ran").exists()
    check_run(bench, (cell,), BenchOptions(unsafe_code=True))
    assert fingerprint(cell, None, "cpu") is None  # the code may change under its name: the key of the job decides
    outcome = run_task(Task(cell, "pgd(steps=1)", 1, str(tmp_path / "runs"), unsafe_code=True))
    assert outcome.status == "ok" and Path("ran").exists(), outcome.error


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('"mine.py:make_modell"', "b.yaml:6: unknown name in mine.py 'make_modell': did you mean make_model"),
        ('{model: "mine.py:make_model"}', "b.yaml:6: .* does not say how it normalises: add --normalize none"),
        ("{model: w.pt, model_from: 'mine.py:MyViT', normalize: none}", "b.yaml:6: weights file 'w.pt' does not exist"),
    ],
)
def test_mistakes_are_told_with_their_line(
    row: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(SOURCE)
    Path("b.yaml").write_text(TEXT.replace('{model: "mine.py:make_model", normalize: none, label: mine}', row))
    with pytest.raises(UsageError, match=message):
        read_benchmark("b.yaml")
