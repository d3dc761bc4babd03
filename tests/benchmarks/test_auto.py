"""benchmarks/perf/auto.py: what it says of two runs is what the two runs say."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.conftest import ARCH, KWARGS, Files, Script
from tests.records.editing import edit_records
from vitattack import evaluate
from vitattack.models.zoo.file_options import FileOptions
from vitattack.records.record import SampleRecord
from vitattack.records.result import Result

AUTO, AGAINST = "auto(steps=2, k=2, long=4)", "autoattack_ref(stages=('apgd-ce', 'square'), steps=5, queries=20)"
BUDGET = "linf:0.004"
OPTIONS = FileOptions(ARCH, KWARGS, normalize="none")

pytestmark = pytest.mark.usefixtures("few_queries")


def run(files: Files, part: str, attack: str, out: Path | None, threat: str = BUDGET) -> Result:
    settings: dict[str, Any] = {
        "threat": threat,
        "data": files.data + part,
        "options": OPTIONS,
        "threads": 1,
        "out": out,
    }
    return evaluate(str(files.model), attack, **settings).results[0]


@pytest.fixture
def called(script: Script, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def call(*more: str) -> Any:
        rows = tmp_path / "rows.json"
        row = {"model": str(files.model), "name": "toy", "data": files.data, "threat": BUDGET}
        rows.write_text(
            json.dumps([row | {"arch": ARCH, "arch_kwargs": KWARGS, "normalize": "none", "held_out": True}])
        )
        words = {"reference": tmp_path / "ref", "out": tmp_path / "auto", "rows": rows, "json": tmp_path / "out.json"}
        words |= {"attack": AUTO, "against": AGAINST}
        flags = [text for name, value in words.items() for text in (f"--{name}", str(value))]
        monkeypatch.setattr(sys, "argv", ["auto.py", *flags, *more])
        script("perf/auto.py").main()
        return json.loads((tmp_path / "out.json").read_text())

    return call


def test_runs_on_parts_are_read_together_and_compared_image_by_image(
    files: Files, tmp_path: Path, called: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [run(files, part, AGAINST, tmp_path / "ref") for part in ("[:8]", "[8:12]")]
    run(files, "", AGAINST, tmp_path / "ref", threat="linf:0.5")  # another budget is another question
    theirs = {r.index: r for result in parts for r in result.records}
    ours = {r.index: r for r in run(files, "", AUTO, None).records}
    both = [i for i in theirs if ours[i].status == theirs[i].status == "robust"]
    assert 2 <= len(both) <= 9  # neither all nor none, or nothing is compared

    # planted: an image that auto leaves standing is broken by the reference
    planted = both.pop()
    folder = next(result.folder for result in parts if planted in [r.index for r in result.records])
    assert folder is not None

    def broken(record: SampleRecord) -> SampleRecord:
        if record.index != planted:
            return record
        return replace(record, status="fooled", evidence={**record.evidence, "stage": 1})

    edit_records(folder, broken)

    content = called()
    (row,) = content["rows"]
    assert (row["n"], row["without reference"], row["clean correct"]) == (12, 1, 11)
    assert [told["image"] for told in row["exceptions"]] == [planted]
    assert row["exceptions"][0]["autoattack"] == "square" and "margin" in row["exceptions"][0]["auto"]
    passes = [sum(side[i].forwards + side[i].backwards for i in both) / len(both) for side in (theirs, ours)]
    assert row["R2"] == pytest.approx(passes[0] / passes[1], abs=0.006)
    assert row["autoattack leaves"] == len(both) + len(row["only autoattack leaves"])
    assert row["seconds"]["autoattack"] == pytest.approx(sum(result.seconds for result in parts), abs=0.1)
    assert content["pooled"] == {"images": 12, "exceptions": 1, "allowed": 1, "smallest R2": row["R2"]}
    shown = capsys.readouterr().out
    assert "held out" in shown and "looked at while" not in shown
    assert f"auto leaves image {planted}" in shown and "1 images have no verdict" in shown


@pytest.mark.slow
def test_both_are_timed_on_the_first_images(files: Files, tmp_path: Path, called: Any) -> None:
    run(files, "[:4]", AGAINST, tmp_path / "ref")
    (timed,) = called("--time", "3", "--rounds", "2")["times"]
    assert timed["n"] == 3 and len(timed["R1"]["auto"]["rounds"]) == 2
    accuracy = {r.index: r for r in run(files, "[:3]", AUTO, None).records}
    assert timed["robust accuracy"]["auto"] == sum(r.status == "robust" for r in accuracy.values()) / 3
    assert timed["seconds"]["auto"] > 0 and timed["seconds"]["autoattack"] > 0


def test_a_model_without_stored_verdicts_is_named(called: Any) -> None:
    with pytest.raises(SystemExit, match=r"no stored run of autoattack_ref.* on 'toy'"):
        called()
