"""Tables of a benchmark, from cells with known numbers."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from vitattack.bench.cells import cells
from vitattack.bench.compare import compared_numbers
from vitattack.bench.fronts import size_fronts
from vitattack.bench.read.benchmark_file import read_benchmark
from vitattack.bench.run.results import BenchmarkResult, CellResult
from vitattack.records import stats
from vitattack.records.record import SampleRecord
from vitattack.records.stats import share
from vitattack.report import bench_files
from vitattack.report.bench_tables import bench_tables

FILE = """
schema: 1
title: A title
source: "A paper, Table 1"
data: cifar10-demo[:100]
threats: [linf:8/255]
models:
  - tiny-vit
  - {model: tiny-cnn-standard, label: CNN}
  - {label: "ViT-B (AT)", published: true}
attacks: [pgd, {attack: gama, label: GAMA}]
reference:
  - {model: tiny-vit, attack: clean, value: 66.0, n: 10000}
  - {model: tiny-vit, attack: GAMA, threat: linf:8/255, value: 40.0, n: 1000, source: elsewhere}
  - {model: CNN, attack: pgd, threat: linf:8/255, value: 30.0}
  - {model: "ViT-B (AT)", attack: GAMA, threat: linf:8/255, value: 57.61, n: 10000}
"""
ROBUST = {("tiny-vit", "pgd"): 38, ("tiny-vit", "GAMA"): 37, ("CNN", "pgd"): 2, ("CNN", "GAMA"): 1}
CLEAN = {"tiny-vit": 66, "CNN": 91}


def made(folder: Path, text: str = FILE, failed: tuple[str, ...] = ()) -> BenchmarkResult:
    path = folder / "made.yaml"
    path.write_text(text)
    bench = read_benchmark(str(path))
    found = []
    for cell in cells(bench):
        if not cell.runnable:
            found.append(CellResult(cell, "published"))
        elif cell.attack_label in failed:
            found.append(CellResult(cell, "failed", error="no such thing: install it"))
        else:
            robust = share(ROBUST[cell.label, cell.attack_label] + cell.seed, 100)
            content = {"doubts": ["few steps"] if cell.attack_label == "pgd" else [], "job": {"attack": cell.attack}}
            found.append(CellResult(cell, "ok", content=content, clean=share(CLEAN[cell.label], 100), robust=robust))
    return BenchmarkResult(bench, tuple(found), folder)


def test_gap_is_newcombes():
    # Newcombe 1998, Statistics in Medicine 17:873, method 10 on 56/70 and 48/80
    found = stats.gap(share(56, 70), 48 / 80, 80)
    assert (round(found.difference, 4), round(found.low, 4), round(found.high, 4)) == (0.2, 0.0524, 0.3339)
    assert not found.inside


def test_gap_needs_the_sampling_of_both():
    measured = share(400, 1000)
    assert stats.gap(measured, 0.438, 1000).inside
    assert not stats.gap(measured, 0.438, None).inside
    assert stats.gap(measured, measured.high - 1e-9, None).inside


def test_every_number_is_in_the_table(tmp_path):
    table = bench_tables(made(tmp_path))[0]
    assert list(table.columns) == ["model", "clean", "pgd", "GAMA"]
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["tiny-vit"][0] == "66.0 (56.2-74.6) [66.00] +0.0 in"
    assert rows["tiny-vit"][1] == "38.0 (29.0-47.8)"
    assert rows["tiny-vit"][2] == "37.0 (28.1-46.8) [40.00] -3.0 in"
    assert rows["CNN"][1].endswith("[30.00] -28.0 out")
    assert rows["ViT-B (AT)"] == ("", "", "[57.61]")
    assert "n = 100" in table.title and "linf:8/255" in table.title
    assert any("elsewhere" in note for note in table.notes)
    assert "doubt: tiny-vit, pgd: few steps" in table.notes


def test_compared_table_counts_the_inside(tmp_path):
    table = next(t for t in bench_tables(made(tmp_path)) if "inside the sampling error" in t.title)
    assert "2 of 3 differences" in table.title
    assert [row[-1] for row in table.rows] == ["in", "in", "out"]
    assert [row[7] for row in table.rows] == ["10000", "1000", "?"]


def test_attacks_down_the_side(tmp_path):
    text = FILE + "rows: [attack]\ncolumns: [model]\n"
    table = bench_tables(made(tmp_path, text))[0]
    assert list(table.columns) == ["attack", "tiny-vit", "CNN", "ViT-B (AT)"]
    assert [row[0] for row in table.rows] == ["clean", "pgd", "GAMA"]


def test_clean_stands_beside_every_budget_of_a_curve(tmp_path):
    text = FILE.replace("[linf:8/255]", "[linf:8/255, linf:4/255]") + "rows: [threat]\ncolumns: [model, attack]\n"
    table = bench_tables(made(tmp_path, text))[0]
    assert [row[0] for row in table.rows] == ["linf:8/255", "linf:4/255"]
    assert list(table.columns)[1:4] == ["tiny-vit clean", "tiny-vit pgd", "tiny-vit GAMA"]
    assert all(row[1].startswith("66.0") for row in table.rows)


@pytest.mark.parametrize("axes", ["rows: [threat]\ncolumns: [model]", "rows: [model]\ncolumns: [threat]"])
def test_one_attack_does_not_give_its_place_to_the_clean_numbers(tmp_path, axes):
    text = FILE.partition("reference:")[0].replace("[pgd, {attack: gama, label: GAMA}]", "[pgd]") + axes + "\n"
    (table, *_) = bench_tables(made(tmp_path, text.replace("[linf:8/255]", "[linf:8/255, linf:4/255]")))
    cells = [cell for row in table.rows for cell in row[1:]]
    assert sum(cell.startswith("38.0") for cell in cells) == sum(cell.startswith("2.0") for cell in cells) == 2
    assert all(table.columns) and len(set(table.columns)) == len(table.columns)


def test_seeds_have_a_mean_and_their_ends(tmp_path):
    found = bench_tables(made(tmp_path, FILE.replace("models:", "seeds: [0, 1, 3]\nmodels:")))
    assert "pgd seed 3" in found[0].columns and "seeds 0, 1, 3" in found[0].title
    assert found[1].rows[0] == ("tiny-vit", "pgd", "linf:8/255", "39.33", "38.00", "41.00", "3")
    compared = next(table for table in found if "inside the sampling error" in table.title)
    assert [row[3] for row in compared.rows if row[1] == "GAMA"] == ["seed 0", "seed 1", "seed 3"]
    assert compared.columns[3] == "seed" and "(?)" in compared.notes[0]


def test_failures_are_said(tmp_path):
    matrix = made(tmp_path, failed=("GAMA",))
    found = bench_tables(matrix)
    assert found[-1].title == "2 failed" and "no such thing" in found[-1].rows[0][1]
    assert dict(zip(found[0].columns, found[0].rows[0], strict=True))["GAMA"] == "failed [40.00]"


def test_wide_tables_come_in_pieces(tmp_path):
    matrix = made(tmp_path)
    pieces = [t for t in bench_tables(matrix, width=30) if t.title.startswith("A title | linf")]
    assert len(pieces) > 1 and "(1 of " in pieces[0].title
    assert [column for piece in pieces for column in piece.columns[1:]] == ["clean", "pgd", "GAMA"]
    assert not pieces[0].notes and pieces[-1].notes
    assert all(piece.columns[0] == "model" and len(piece.rows) == 3 for piece in pieces)
    whole = bench_tables(matrix, width=400)[0]
    assert "\n" in whole.rows[0][1] and "(1 of" not in whole.title


def test_json_has_the_agreed_shape(tmp_path):
    found = json.loads(json.dumps(bench_files.bench_json(made(tmp_path))))
    agreed = {"model", "attack", "threat", "measured", "low", "high", "published", "source", "n", "status"}
    assert found["schema"] == 1 and found["file"].endswith("made.yaml")
    assert all(agreed <= cell.keys() for cell in found["cells"])
    by_name = {(cell["model"], cell["attack"]): cell for cell in found["cells"]}
    cell = by_name["tiny-vit", "GAMA"]
    assert (cell["measured"], cell["published"], cell["n"], cell["source"]) == (0.37, 0.4, 100, "elsewhere")
    assert cell["low"] < 0.37 < cell["high"] and cell["inside"] is True
    assert by_name["tiny-vit", "clean"]["measured"] == 0.66
    quoted = by_name["ViT-B (AT)", "GAMA"]
    assert (quoted["status"], quoted["measured"], quoted["published"]) == ("published", None, 0.5761)
    assert ("ViT-B (AT)", "pgd") not in by_name


def test_numbers_are_a_row_per_cell(tmp_path):
    lines = bench_files.number_table(made(tmp_path)).csv().splitlines()
    rows = list(csv.DictReader(io.StringIO("\n".join(lines))))
    assert {(r["model"], r["attack"], r["measured"]) for r in rows} >= {
        ("CNN", "GAMA", "0.01"),
        ("CNN", "clean", "0.91"),
    }


@pytest.mark.parametrize("form", ["markdown", "latex", "csv"])
def test_every_form_holds_the_numbers(tmp_path, form):
    text = getattr(bench_tables(made(tmp_path))[0], form)()
    assert "57.61" in text and "37.0" in text
    assert ("\\toprule" in text) == (form == "latex")


def test_front_by_size(tmp_path):
    matrix = made(tmp_path)
    (front,) = size_fronts(matrix, compared_numbers(matrix))
    # GAMA has a published number more, but that model's size is nobody's to know
    assert front.attack == "GAMA" and [point.model for point in front.points] == ["tiny-vit", "CNN"]
    vit, cnn = front.points
    assert vit.smallest and cnn.smallest == (cnn.parameters < vit.parameters)
    worse = replace(matrix, cells=tuple(_as_robust(m) for m in matrix.cells))
    (front,) = size_fronts(worse, compared_numbers(worse))
    assert sum(point.smallest for point in front.points) == 1  # the larger of two equals is not on it


def _as_robust(measured: CellResult) -> CellResult:
    return replace(measured, robust=share(37, 100)) if measured.robust else measured


def test_saved_in_every_form(tmp_path, monkeypatch):
    matrix = made(tmp_path)
    records = [SampleRecord(i, 1, 1, 2, "fooled", 0.03, False, False, 3, 21, 20, {"tx": i}) for i in range(3)]
    monkeypatch.setattr(CellResult, "records", lambda self: iter(records if self.status == "ok" else ()))
    monkeypatch.setattr("vitattack.report.sample_parquet.ROWS_IN_MEMORY", 2)
    paths = bench_files.save_bench(matrix, tmp_path / "out")
    assert sorted(path.suffix for path in paths) == [".csv", ".json", ".md", ".parquet", ".tex", ".txt"]
    frame = pd.read_csv(tmp_path / "out" / "made.csv")
    assert len(frame) == len(bench_files.number_table(matrix).rows) and not frame["model"].str.startswith("#").any()
    assert (tmp_path / "out" / "made.notes.txt").read_text().startswith(matrix.bench.title)
    rows = pq.read_table(tmp_path / "out" / "made.parquet").to_pylist()
    assert len(rows) == 4 * 3
    assert (
        rows[0]["model"] == "tiny-vit"
        and rows[0]["status"] == "fooled"
        and json.loads(rows[2]["evidence"]) == {"tx": 2}
    )
    assert [row["index"] for row in rows[:3]] == [0, 1, 2] and {row["attack"] for row in rows} == {"pgd", "GAMA"}
