"""CSV as other programs read it: headings and rows, with title, notes and doubts beside them."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.cli.conftest import Here

BENCH = """\
schema: 1
title: Two attacks
source: us
data: cifar10-demo[:4]
threats: [linf:8/255]
models: [tiny-vit, {label: theirs, published: true}]
attacks: [fgsm, random]
defaults: {batch_size: 4}
reference:
  - {model: theirs, attack: fgsm, value: 52.5, n: 1000}
"""
FEW = ("--limit", "4", "--threads", "1", "--quiet")


@pytest.mark.parametrize(
    ("words", "rows", "said"),
    [
        (("eval", "tiny-vit", "fgsm", "random", *FEW), 4, "n = 4"),
        (("eval", "tiny-vit", "fgsm", "--threat", "linf:1/255,2/255", *FEW), 3, "n = 4"),
        (("eval", "tiny-vit", "auto(passes=150)", *FEW), 2, "what each stage bought"),
        (("transfer", "tiny-vit", "tiny-vit-standard", "--attack", "fgsm", *FEW), 4, "n = 4"),
        (("bench", "two.yaml", "--quiet"), 5, "Two attacks"),
        (("bench", "two.yaml", "--plan", "--throughput", "1T"), None, "Two attacks"),
        (("bench",), None, "benchmarks"),
        (("models", "list"), None, "models of the zoo"),
        (("models", "info", "tiny-vit"), None, "tiny-vit"),
        (("attacks", "list"), None, "attacks"),
        (("attacks", "info", "pgd"), None, "pgd"),
        (("data", "list"), None, "data sets"),
        (("data", "info", "cifar10"), None, "cifar10"),
        (("train",), None, "recipes"),
        (("diagnose-softmax", "tiny-vit", "--limit", "4", "--quiet"), None, "tiny-vit"),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, tuple) else "",
)
def test_every_row_of_a_csv_is_a_row(here: Here, tmp_path: Path, words: tuple[str, ...], rows: int, said: str) -> None:
    (tmp_path / "two.yaml").write_text(BENCH)
    done = here(*words, "--format", "csv")
    assert done.returncode == 0, done.stderr
    frame = pd.read_csv(io.StringIO(done.stdout))
    assert rows is None or len(frame) == rows, frame
    assert not isinstance(frame.index, pd.MultiIndex) and len(frame) > 0
    assert not frame[frame.columns[0]].astype(str).str.startswith("#").any()
    assert frame[frame.columns[0]].notna().all() and said in done.stderr


def test_notes_lie_beside_the_file_that_stdout_is(tmp_path: Path) -> None:
    def run(mode: str) -> str:
        with (tmp_path / "models.csv").open(mode) as stdout:
            command = [sys.executable, "-m", "vitattack.cli", "models", "list", "--format", "csv"]
            return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=True).stderr

    said = run("w")
    notes = (tmp_path / "models.notes.txt").read_text()
    assert (
        notes.splitlines()[0].endswith(" models of the zoo")
        and said == f"title and notes: {tmp_path / 'models.notes.txt'}\n"
    )
    assert len(pd.read_csv(tmp_path / "models.csv")) > 20
    (tmp_path / "models.notes.txt").unlink()
    assert run("a").splitlines()[0].endswith(" models of the zoo") and not (tmp_path / "models.notes.txt").exists()
