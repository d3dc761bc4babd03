"""Evaluations under the spatial threat: report, store and resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.conftest import tiny_vit, toy_pictures
from vitattack.attacks.spatial.attack import SpatialGrid
from vitattack.attacks.spatial.report import spatial_report
from vitattack.evaluation.evaluate import Evaluation, evaluate
from vitattack.records.job import Job
from vitattack.records.record import SampleRecord
from vitattack.records.result import Result
from vitattack.report.evaluation import table

GRID = "spatial(shifts=3, angles=5)"
SETTINGS: dict[str, Any] = {"threat": "spatial:1.5px,8deg", "batch_size": 4, "threads": 1}
Images = tuple[Tensor, Tensor]


def images(n: int = 14, wrong: int = 2) -> Images:
    """The toy's own predictions as labels, with some clean errors put in."""
    x = toy_pictures(n, seed=5)
    with torch.no_grad():
        y = tiny_vit()(x).argmax(1)
    y[:wrong] = (y[:wrong] + 1) % 10
    return x, y


def run(attacks: str | list[str] = GRID, **more: Any) -> Evaluation:
    return evaluate(tiny_vit(), attacks, data=images(), **{**SETTINGS, **more})


def test_the_table_and_json_hold_shifts_and_rotations_over_all_samples() -> None:
    evaluation = run()
    (result,) = evaluation.results
    found = spatial_report(result)
    assert found is not None and found.transforms is None and found.note is None
    assert found.shifts.n == found.rotations.n == 14
    attacked = [r for r in result.records if r.status != "clean_wrong"]
    assert len(attacked) == 12
    for accuracy, name in ((found.shifts, "fooled_by_shift"), (found.rotations, "fooled_by_rotation")):
        assert accuracy.correct == sum(not r.evidence[name] for r in attacked)
        assert result.robust.correct <= accuracy.correct <= evaluation.clean.correct
    assert result.robust.correct < found.shifts.correct or result.robust.correct < found.rotations.correct
    rows = {row[0].strip(): row for row in table(evaluation).rows}
    assert rows["shifts only"][3] == f"{found.shifts.correct}/14"
    assert rows["rotations only"][3] == f"{found.rotations.correct}/14"
    content = json.loads(json.dumps(evaluation.json()))["attacks"][0]["spatial"]
    assert content["shifts"]["correct"] == found.shifts.correct and content["transforms"] is None


def test_the_full_grid_agrees_and_says_how_many_fool() -> None:
    evaluation = run([GRID, "spatial(shifts=3, angles=5, full_grid=True)", "spatial(shifts=3, angles=5, report=False)"])
    quick, full, bare = evaluation.results
    assert len({tuple(r.status for r in result.records) for result in evaluation.results}) == 1
    one, two = spatial_report(quick), spatial_report(full)
    assert one is not None and two is not None and spatial_report(bare) is None
    assert (one.shifts, one.rotations) == (two.shifts, two.rotations)
    counts = sorted(r.evidence["fooling"] for r in full.records if r.evidence)
    assert two.median_fooling == (counts[5] + counts[6]) / 2 and two.transforms == 45
    note = f"fooled by {two.median_fooling:g} of 45 transforms"
    assert sum(note in line for line in table(evaluation).notes) == 1
    attacked = [r for r in full.records if r.evidence]
    assert all(r.forwards == 1 + 45 + 1 + (r.status == "fooled") for r in attacked)


def record(status: Any, *, shift: bool = False, fragile: bool = False, **more: Any) -> SampleRecord:
    evidence = {"fooled_by_shift": shift, "fooled_by_rotation": False, **more}
    return SampleRecord(0, 0, 0, 1, status, 0.1, fragile, False, 0, 3, 0, evidence)


def report_of(*records: SampleRecord) -> Any:
    job = Job("toy", "spatial", "spatial", "toy", "", "")
    return spatial_report(Result(job, records, 1.0, (), {}))


def test_counts_by_hand_and_what_could_be_counted_either_way_widens_the_interval() -> None:
    plain = report_of(record("fooled", shift=True), record("fooled"), record("robust"), record("robust"))
    assert (plain.shifts.correct, plain.rotations.correct, plain.shifts.n) == (3, 4, 4)
    loose = report_of(
        record("fooled", shift=True), record("fooled"), record("robust"), record("robust", shift=True, fragile=True)
    )
    assert loose.shifts.correct == 3 and loose.shifts.low < plain.shifts.low and loose.shifts.high == plain.shifts.high
    broken = report_of(record("fooled", shift=True), record("fooled"), record("robust"), record("invalid"))
    assert broken.shifts.correct == 2 and broken.shifts.high == plain.shifts.high
    assert report_of(record("robust", stage=0)) is None  # one stage of several
    assert report_of() is None


def test_inside_worst_the_stages_show_no_report() -> None:
    evaluation = run(f"worst(spatial_random(k=2), {GRID})")
    assert evaluation.results[0].section("spatial") is None
    assert evaluation.results[0].robust.correct == run().results[0].robust.correct


def test_a_crashed_run_goes_on_with_the_learned_order_to_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = toy_pictures(8, seed=99)
    with torch.no_grad():
        other = x, tiny_vit()(x).argmax(1)
    whole = run(calibration=other, out=tmp_path / "whole")
    calls = 0
    original = SpatialGrid.__call__

    def crash(self: SpatialGrid, *args: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return original(self, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(SpatialGrid, "__call__", crash)
        with pytest.raises(KeyboardInterrupt):
            run(calibration=other, out=tmp_path / "cut")
    with monkeypatch.context() as patch:  # the order is recalled, never learned again
        patch.setattr(SpatialGrid, "prepare", None)
        again = run(calibration=other, out=tmp_path / "cut")
    assert whole.results[0].folder and again.results[0].folder
    for name in ("samples.jsonl", "learned.json"):
        one, two = ((result.folder / name) for result in (whole.results[0], again.results[0]) if result.folder)
        if name == "samples.jsonl":
            assert one.read_bytes() == two.read_bytes()
        else:
            assert json.loads(one.read_text())["learned"] == json.loads(two.read_text())["learned"]
    assert whole.results[0].learned is not None and len(whole.results[0].learned["learned"]["order"]) == 45


def test_without_images_to_spare_it_runs_with_a_fixed_order() -> None:
    x = toy_pictures(8, seed=99)
    with torch.no_grad():
        other = x, tiny_vit()(x).argmax(1)
    fixed, learned = run().results[0], run(calibration=other).results[0]
    assert fixed.learned is None and fixed.job.calibration == ""
    assert learned.learned is not None and learned.job.calibration
    assert [r.status for r in fixed.records] == [r.status for r in learned.records]
    columns = ("fooled_by_shift", "fooled_by_rotation")
    for one, two in zip(fixed.records, learned.records, strict=True):
        assert [one.evidence.get(c) for c in columns] == [two.evidence.get(c) for c in columns]


def test_two_shards_give_the_records_of_one_run(tmp_path: Path) -> None:
    whole = run(out=tmp_path / "whole")
    for k in range(2):
        parts = run(out=tmp_path / "shards", shard=(k, 2))
    assert parts.results[0].records == whole.results[0].records
