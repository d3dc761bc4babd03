"""Worst cases of models and fronts of robustness against size, from the records of cells."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from vitattack.bench.cells import cells
from vitattack.bench.read.benchmark_file import read_benchmark
from vitattack.bench.run.results import BenchmarkResult, CellResult
from vitattack.records.batch import Batch
from vitattack.records.record import SampleRecord
from vitattack.records.sealed import sealed_text
from vitattack.records.stats import share
from vitattack.report.bench_files import bench_json, number_table
from vitattack.report.bench_tables import bench_tables

FILE = """
schema: 1
title: A title
data: cifar10-demo[:100]
threats: [linf:8/255]
models: [tiny-vit, tiny-cnn-standard, {model: mine.safetensors, arch: "small:vit", normalize: none, label: mine}]
attacks: [pgd, gama]
"""
Robust = Mapping[tuple[str, str], str]  # by model and attack: + for robust, . for fooled


def made(folder: Path, robust: Robust, text: str = FILE, **counted: int) -> BenchmarkResult:
    path = folder / "made.yaml"
    (folder / "mine.safetensors").touch()
    path.write_text(text.replace("mine.safetensors", str(folder / "mine.safetensors")))
    bench = read_benchmark(str(path), check_attacks=False)
    found = []
    for number, cell in enumerate(cells(bench)):
        marks = robust[cell.label, cell.attack_label]
        job = folder / str(number)
        job.mkdir(exist_ok=True)
        lines = [
            SampleRecord(
                i,
                1,
                1,
                1 if mark == "+" else 2,
                "robust" if mark == "+" else "fooled",
                0.03,
                False,
                False,
                3,
                21,
                20,
                {},
            )
            for i, mark in enumerate(marks)
        ]
        written = Batch(0, tuple(lines)).encoded()
        (job / "samples.jsonl").write_bytes(written)
        held = {"samples": {"bytes": len(written), "crc": f"{zlib.crc32(written):08x}"}}
        (job / "result.json").write_text(sealed_text(held))
        content = {"model": counted if cell.label == "mine" else {}}
        clean, accuracy = share(len(marks), len(marks)), share(marks.count("+"), len(marks))
        found.append(CellResult(cell, "ok", job, content=content, clean=clean, robust=accuracy))
    return BenchmarkResult(bench, tuple(found), folder)


def of_all(pgd: Mapping[str, str], gama: Mapping[str, str]) -> dict[tuple[str, str], str]:
    return {(model, attack): marks[model] for attack, marks in (("pgd", pgd), ("gama", gama)) for model in marks}


HALF = {"tiny-vit": "++++....", "tiny-cnn-standard": "+++.....", "mine": "++......"}
OTHER = {"tiny-vit": "..++++..", "tiny-cnn-standard": "+++.....", "mine": "++......"}


def test_the_worst_case_is_a_column_of_every_table(tmp_path: Path) -> None:
    found = made(tmp_path, of_all(HALF, OTHER), parameters=10, flops=10)
    table, *_, front = bench_tables(found)
    assert list(table.columns) == ["model", "clean", "pgd", "gama", "worst case"]
    assert [row[-1].partition(" ")[0] for row in table.rows] == ["25.0", "37.5", "25.0"]
    assert "worst case of pgd, gama" in front.title
    assert {row[0]: row[4] for row in front.rows} == {"tiny-vit": "25.0", "tiny-cnn-standard": "37.5", "mine": "25.0"}
    content = bench_json(found)
    assert [(each["model"], each["measured"]) for each in content["worst_case"]] == [
        ("tiny-vit", 0.25),
        ("tiny-cnn-standard", 0.375),
        ("mine", 0.25),
    ]
    assert sum("worst case" in row for row in number_table(found).rows) == 3
    seeds = FILE + "seeds: [0, 1]\n"
    over_seeds = bench_tables(made(tmp_path, of_all(HALF, OTHER), seeds))[1]
    assert ("tiny-vit", "worst case", "linf:8/255", "25.00", "25.00", "25.00", "2") in over_seeds.rows


def points(found: BenchmarkResult) -> dict[str, dict[str, object]]:
    (front,) = bench_json(found)["front"]
    return {point["model"]: point for point in front["points"]}


def test_the_model_of_the_user_is_on_the_plot_or_named(tmp_path: Path) -> None:
    found = points(made(tmp_path, of_all(HALF, OTHER), parameters=123, flops=456))
    assert (found["mine"]["parameters"], found["mine"]["flops"]) == (123, 456)
    without = made(tmp_path, of_all(HALF, OTHER))
    (front,) = bench_json(without)["front"]
    assert front["left_out"] == ["mine"] and "mine" not in points(without)
    assert any("left out" in note and "mine" in note for note in bench_tables(without)[-1].notes)


@pytest.mark.parametrize("n", [1, 25])
def test_only_differences_that_sampling_does_not_explain_make_a_front(tmp_path: Path, n: int) -> None:
    sized = points(made(tmp_path, of_all(HALF, OTHER)))
    small, large = sorted(sized, key=lambda name: (sized[name]["parameters"], name))
    marks = {"mine": "+" * 8 * n, small: ("+" * 5 + "...") * n, large: ("+" * 6 + "..") * n}
    for parameters in (int(str(sized[large]["parameters"])), 10**9):
        found = points(made(tmp_path, of_all(marks, marks), parameters=parameters, flops=10**12))
        assert found[small]["smallest"]  # nothing is smaller
        assert found[large]["smallest"] == (n > 1 and parameters == 10**9)  # 75.0 against 62.5
        assert found["mine"]["smallest"] == (n > 1)


def test_equal_models_stay_beside_each_other_until_one_is_shown_to_be_better(tmp_path: Path) -> None:
    text = FILE.replace("tiny-vit,", "tiny-vit, {model: tiny-vit, label: again},").replace("tiny-cnn-standard, ", "")
    for n in (1, 25):
        marks = {"tiny-vit": "++++++.." * n, "again": "+++++..." * n, "mine": "." * 8 * n}
        found = points(made(tmp_path, of_all(marks, marks), text))
        assert found["tiny-vit"]["smallest"] and found["again"]["smallest"] == (n == 1)
