"""Stored runs side by side: read without torch, grouped by images, with curves that agree with counts by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.report.stored_runs import drawn_records, job, record, store_run
from vitattack.core.errors import UsageError
from vitattack.records.report_section import Section
from vitattack.report.overview import curves
from vitattack.report.overview.attachments import read_attachments
from vitattack.report.overview.command import command_of
from vitattack.report.overview.figures import Matrix, Stages, figures
from vitattack.report.overview.overview import Overview
from vitattack.report.overview.published import model_facts
from vitattack.report.overview.read import read_everything, read_overview

FOUR = [record(0), record(1, "fooled"), record(2, "clean_wrong"), record(3, "fooled", forwards=50)]


def test_runs_on_the_same_images_are_rows_with_their_worst_case(tmp_path: Path) -> None:
    store_run(tmp_path, job(attack="pgd"), FOUR)
    store_run(tmp_path, job(attack="fgsm"), [record(0, "fooled"), record(1), record(2, "clean_wrong"), record(3)])
    store_run(tmp_path, job(attack="fgsm", threat="linf:1/255"), FOUR)
    store_run(tmp_path, job(pixels="q" * 64), FOUR[:2])
    first, second = read_overview([tmp_path]).sets
    assert [(row.threat, len(row.runs), row.worst.correct) for row in first.rows] == [
        ("linf:1/255", 1, 1),
        ("linf:8/255", 2, 0),
    ]
    assert (first.n, second.n, len(second.runs)) == (4, 2, 1)


def test_models_that_see_the_same_rows_in_another_preparation_share_a_set(tmp_path: Path) -> None:
    def protocol(transform: str, rows: str = "r") -> dict[str, object]:
        return {"protocol": {"rows_sha256": rows, "transform": transform}}

    store_run(tmp_path, job("small", pixels="a"), FOUR, provenance=protocol("crop224"))
    store_run(tmp_path, job("large", pixels="b"), FOUR, provenance=protocol("crop384"))
    store_run(tmp_path, job("other files", pixels="c"), FOUR, provenance=protocol("crop224"))
    store_run(tmp_path, job("other rows", pixels="d"), FOUR, provenance=protocol("crop448", "s"))
    sets = [{run.job.model for run in images.runs} for images in read_overview([tmp_path]).sets]
    assert len(sets) == 3
    assert {"other rows"} in sets
    assert any("large" in models and len(models) == 2 for models in sets)


def test_candidates_of_another_model_count_in_the_worst_case(tmp_path: Path) -> None:
    store_run(tmp_path, job(), [record(0), record(1)])
    store_run(
        tmp_path,
        job(attack='transfer("a", pgd)', weights="w" * 64 + " of the source", pixels="p" * 64 + " others"),
        [record(0, "fooled"), record(1)],
    )
    (row,) = read_overview([tmp_path]).rows
    assert (len(row.runs), row.worst.correct) == (2, 1)


def test_equal_models_of_other_weights_are_rows_of_their_own(tmp_path: Path) -> None:
    store_run(tmp_path, job(), FOUR)
    store_run(tmp_path, job(weights="v" * 64), FOUR)
    (images,) = read_overview([tmp_path]).sets
    assert [len(row.runs) for row in images.rows] == [1, 1]


def test_unfinished_and_damaged_runs_are_named_and_have_no_number(tmp_path: Path) -> None:
    stopped = store_run(tmp_path, job(), drawn_records(600, 1), finished=False)
    damaged = store_run(tmp_path, job(attack="fgsm"), FOUR)
    with (damaged / "samples.jsonl").open("ab") as stream:
        stream.write(b"no record")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "job.json").write_text("[[[")
    overview = read_overview([tmp_path])
    assert not overview.runs
    assert {(run.folder, run.n, run.state) for run in overview.unfinished} == {
        (stopped, 512, "unfinished"),
        (damaged, 0, "damaged"),
        (tmp_path / "other", 0, "damaged"),
    }


def test_survivors_fall_where_passes_were_spent(tmp_path: Path) -> None:
    store_run(tmp_path, job(), FOUR)
    (run,) = read_overview([tmp_path]).runs
    curve = curves.survivors_by_passes(run)
    assert (curve.x, curve.y) == ((1.0, 8.0, 53.0), (0.75, 0.5, 0.25))


def test_a_long_curve_is_thinned_and_keeps_its_ends(tmp_path: Path) -> None:
    records = [record(at, "fooled", forwards=at + 1, backwards=0) for at in range(5000)]
    store_run(tmp_path, job(), records)
    (run,) = read_overview([tmp_path]).runs
    curve = curves.survivors_by_passes(run)
    assert len(curve.x) <= curves.MOST_STEPS + 2
    assert (curve.y[0], curve.y[-1], curve.x[-1]) == (1.0, 0.0, 5000.0)
    assert all(abs(y - (1 - x / 5000)) < 0.01 for x, y in zip(curve.x[1:], curve.y[1:], strict=True))


def test_minimum_norm_attacks_have_a_curve_over_eps(tmp_path: Path) -> None:
    near = [record(at, "fooled", evidence={"distance": size}) for at, size in enumerate((0.01, 0.02))]
    store_run(tmp_path, job(attack="fab"), [*near, record(2, evidence={"distance": -1.0})])
    (run,) = read_overview([tmp_path]).runs
    curve = curves.survivors_by_distance(run)
    assert curve is not None
    assert curve.y == pytest.approx((1.0, 2 / 3, 1 / 3, 1 / 3))
    assert curve.x == pytest.approx((0.0, 0.01, 0.02, 8 / 255), abs=1e-6)


def test_budgets_make_a_curve_that_begins_at_the_clean_accuracy(tmp_path: Path) -> None:
    store_run(tmp_path, job(threat="linf:8/255"), FOUR)
    store_run(tmp_path, job(threat="linf:2/255"), [*FOUR[:3], record(3)])
    (images,) = read_overview([tmp_path]).sets
    ((norm, (curve,)),) = curves.accuracy_by_budget(images).items()
    assert (norm, curve.y) == ("linf", (0.75, 0.5, 0.25))
    assert curve.x == pytest.approx((0, 2 / 255, 8 / 255))


def test_stages_are_named_only_where_the_counts_show_the_order(tmp_path: Path) -> None:
    staged = [record(0, "fooled", evidence={"stage": 1}), record(1, "fooled", evidence={"stage": 1}), record(2)]
    one = store_run(tmp_path, job(), staged, sections=[Section("stages", {"pgd": 0, "square": 2})])
    store_run(tmp_path, job(attack="fgsm"), staged, sections=[Section("stages", {"pgd": 1, "square": 1})])
    runs = {run.folder: run.stages for run in read_overview([tmp_path]).runs}
    assert runs.pop(one) == ("pgd", "square")
    assert [*runs.values()] == [()]


def test_transferred_candidates_make_a_matrix_with_the_white_box_on_its_diagonal(tmp_path: Path) -> None:
    store_run(tmp_path, job("b", 'transfer("a", pgd)', weights="b" * 64), FOUR)
    store_run(tmp_path, job("a", "pgd", weights="a" * 64), [record(at, "fooled") for at in range(4)])
    overview = read_overview([tmp_path])
    (matrix,) = [figure for figure in figures(overview) if figure.head.kind == "transfer"]
    assert isinstance(matrix, Matrix)
    assert (matrix.rows, matrix.columns, matrix.values) == (("a",), ("a", "b"), ((0.0, 0.25),))


def test_spatial_candidates_are_counted_by_shift_and_angle(tmp_path: Path) -> None:
    moved = [
        record(at, "fooled", evidence={"tx": float(x), "ty": 0.0, "angle": 10.0}) for at, x in enumerate((1, 1, -2))
    ]
    store_run(tmp_path, job(attack="spatial", threat="spatial:2px,10deg"), moved)
    shifts, angles = [figure for figure in figures(read_overview([tmp_path])) if figure.head.kind == "spatial"]
    assert isinstance(shifts, Matrix)
    assert isinstance(angles, Stages)
    assert (shifts.columns, shifts.values) == (("-2", "1"), ((1.0, 2.0),))
    assert [(stage.name, stage.broke) for stage in angles.stages] == [("10°", 3)]


def test_published_numbers_stand_beside_the_same_question_only(tmp_path: Path) -> None:
    provenance = {"protocol": {"data": "cifar10-demo"}}
    store_run(tmp_path, job(), FOUR, provenance=provenance)
    store_run(tmp_path, job(threat="linf:4/255"), FOUR, provenance=provenance)
    same, other = (model_facts(row) for row in sorted(read_overview([tmp_path]).rows, key=lambda row: row.threat)[::-1])
    assert same.parameters == 1275018
    assert same.robust is not None
    assert (same.robust.value, same.robust.n) == (pytest.approx(0.36), 500)
    assert same.robust.gap.difference == pytest.approx(0.25 - 0.36)
    assert other.clean is not None
    assert other.robust is None


def test_the_command_makes_the_run_again(tmp_path: Path) -> None:
    of = job(attack="worst(pgd, gama)", seed=3, threads=2)
    assert command_of(of, {"source": "zoo"}) == (
        "vitattack eval tiny-vit 'worst(pgd, gama)' --threat linf:8/255 --data 'cifar10-demo[:10]' --seed 3 --threads 2 "
        "--device cpu"
    )
    assert "--arch vit --normalize none" in (
        command_of(of, {"source": "file", "arch": "vit", "normalize": "none"}) or ""
    )
    assert command_of(of, {"source": "module"}) is None
    assert command_of(job(data="tensors:12ab"), {}) is None


def test_files_of_other_commands_are_read_and_others_are_refused(tmp_path: Path) -> None:
    layer = {"histogram": [0] * 63 + [5], "block": "blocks.0", "name": "blocks.0.attn", "verdict": "ok"}
    softmax, strange = tmp_path / "softmax.json", tmp_path / "strange.json"
    softmax.write_text(json.dumps({"model": "m", "data": "d", "n": 4, "verdict": "ok", "layers": [layer]}))
    (figure,) = figures(Overview(()), read_attachments([softmax]))
    assert figure.head.title == "Attention scores of m"
    for text in ("{}", "[]", "{", '{"layers": [{}]}', '{"sources": 3}', '{"cells": 1, "worst_case": 2}', "[" * 100_000):
        strange.write_text(text)
        with pytest.raises(UsageError, match="name such a file, a store or a run"):
            read_attachments([strange])


def test_a_path_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no folder: name one that eval --out wrote"):
        read_overview([tmp_path / "missing"])


def test_one_run_of_a_store_is_named_by_folder_or_key(tmp_path: Path) -> None:
    folder = store_run(tmp_path, job(), FOUR)
    store_run(tmp_path, job(attack="fgsm"), FOUR)
    for words in ([str(folder), str(folder)], [job().key], [job().key[:8]]):
        assert [run.folder for run in read_everything(words, tmp_path)[0].runs] == [folder]
    assert len(read_everything([], tmp_path)[0].runs) == 2
    with pytest.raises(UsageError, match="did you mean"):
        read_everything([job().key[:7] + "x"], tmp_path)


def test_neither_torch_nor_pandas_is_imported(tmp_path: Path) -> None:
    store_run(tmp_path, job(), FOUR)
    script = (
        "import sys; from vitattack.report.overview.read import read_everything\n"
        "from vitattack.report.page.document import page\n"
        f"page(*read_everything([{str(tmp_path)!r}]))\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'pandas', 'matplotlib')))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
