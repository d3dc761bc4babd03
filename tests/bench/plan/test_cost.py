"""Costs of whole benchmarks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch

from tests.bench.plan.making import TEXT, bench, plan
from vitattack.bench.options import BenchOptions
from vitattack.bench.run.run_benchmark import run_benchmark
from vitattack.models.architectures.build import build_architecture
from vitattack.models.flops import count_forward
from vitattack.models.victim import Victim
from vitattack.models.zoo.catalogue import zoo_entries
from vitattack.models.zoo.count_figures import count_figures
from vitattack.models.zoo.figures import figures_of
from vitattack.report.bench_plan import format_bytes, format_flops, format_hours, plan_table


def test_the_price_of_a_cell_is_passes_times_recorded_figures(tmp_path: Path) -> None:
    found = plan(bench(tmp_path), throughput=1e9)
    vit, cnn = (figures_of(zoo_entries()[name]) for name in ("tiny-vit", "tiny-cnn-standard"))
    assert vit is not None and cnn is not None
    white, transfer, *published = found.rows
    assert white.passes == (23, 20) and white.n == 8
    each = 23 * vit.flops + 20 * vit.backward
    assert white.flops == 8 * each and white.hours == white.flops / 1e9 / 3600
    assert white.least_flops == 8 * (0.75 * vit.flops + 0.25 * each)  # a quarter survives as published
    assert transfer.passes == (3, 0)
    assert transfer.flops == 8 * (3 * vit.flops + 20 * cnn.flops + 20 * cnn.backward) and transfer.least_flops is None
    assert all(row.flops is None and not row.to_run for row in published)
    assert (
        found.total(lambda row: row.flops) == white.flops + transfer.flops and found.unknown(lambda row: row.hours) == 0
    )
    assert white.fetch == 0 and json.loads(json.dumps(found.json()))["to_run"] == 2


def test_weights_are_fetched_once_whatever_asks_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITATTACK_HOME", str(tmp_path / "home"))
    name = "rb/Debenedetti2022Light_XCiT-S12/cifar10"
    text = TEXT.replace("{label: theirs, published: true}", name).replace("tiny-cnn-standard", name)
    found = plan(bench(tmp_path, text))
    figures = figures_of(zoo_entries()[name])
    assert figures is not None
    weights = zoo_entries()[name].weights
    wanted = (weights and weights.size) or 4 * figures.parameters
    assert [row.fetch for row in found.rows] == [0, wanted, 0, 0]
    assert found.total(lambda row: row.fetch) == wanted
    assert all(row.hours is None for row in found.rows) and found.total(lambda row: row.hours) is None
    assert "--throughput 20T" in " ".join(plan_table(found).notes)


def test_what_nobody_knows_is_said(tmp_path: Path) -> None:
    text = TEXT.replace("tiny-vit, {", "hf-hub:somebody/something, {").replace("model: tiny-vit", "model: theirs")
    found = plan(bench(tmp_path, text.replace("[pgd,", "[\"torchattacks('APGD')\", pgd,")), throughput=1e12)
    by = {row.cell.attack_label: row for row in found.rows if row.cell.runnable}
    assert by["torchattacks('APGD')"].passes is None and by["pgd"].passes == (23, 20)
    assert by["pgd"].flops is None and found.unknown(lambda row: row.flops) == 3
    shown = plan_table(found)
    assert any("unknown price" in note for note in shown.notes) and "?" in shown.rows[0]


def test_stored_cells_are_not_counted(tmp_path: Path) -> None:
    text = TEXT.replace("[pgd, \"transfer('tiny-cnn-standard', pgd(stop=never))\"]", "[fgsm, random]")
    some = bench(tmp_path, text.replace("attack: pgd", "attack: fgsm"))
    run_benchmark(some, BenchOptions(store=tmp_path / "runs", only=("fgsm",)))
    found = plan(some, store=tmp_path / "runs")
    assert [(row.cell.attack, row.stored) for row in found.rows if row.cell.runnable] == [
        ("fgsm", True),
        ("random", False),
    ]
    assert len(found.to_run) == 1 and found.total(lambda row: row.flops) == found.rows[1].flops
    assert len(plan(some, store=tmp_path / "runs", fresh=True).to_run) == 2


def test_weights_of_a_stored_cell_are_fetched_for_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store from elsewhere: records are here, weights are not."""
    some = bench(tmp_path, TEXT.partition("reference:")[0].replace("[pgd,", "[fgsm, random,"))
    run_benchmark(some, BenchOptions(store=tmp_path / "runs", only=("fgsm",)))
    sizes = {"tiny-vit": 1000, "tiny-cnn-standard": 200}
    monkeypatch.setattr("vitattack.bench.plan.cost.to_fetch", lambda name: sizes[name])
    found = plan(some, store=tmp_path / "runs")
    assert [row.fetch for row in found.rows if row.cell.runnable] == [0, 1000, 200]
    assert found.total(lambda row: row.fetch) == 1200


def test_a_source_that_is_named_twice_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"tiny-vit": 1000, "tiny-cnn-standard": 200}
    monkeypatch.setattr("vitattack.bench.plan.cost.to_fetch", lambda name: sizes[name])
    crafted = "transfer('tiny-cnn-standard', {})"
    attack = f"worst({crafted.format('pgd')}, {crafted.format('fgsm')})"
    text = TEXT.partition("attacks:")[0] + f'attacks: ["{attack}"]\n'
    assert plan(bench(tmp_path, text)).rows[0].fetch == 1200


def test_a_file_is_priced_by_its_own_shape(tmp_path: Path) -> None:
    """Of an architecture of the zoo without being opened, of another one by counting what the file holds."""
    like = zoo_entries()["tiny-vit"]
    torch.save(build_architecture(str(like.arch), {"depth": 2}).state_dict(), tmp_path / "w.pt")
    row = f"{{model: {tmp_path / 'w.pt'}, label: mine, arch: {like.arch!r}, normalize: cifar10MORE}}"

    def priced(more: str) -> float | None:
        text = TEXT.partition("attacks:")[0].replace("[tiny-vit,", f"[{row.replace('MORE', more)},")
        return plan(bench(tmp_path, text + "attacks: [pgd]\n")).rows[0].flops

    figures = figures_of(like)
    assert figures is not None and not like.arch_kwargs
    assert priced("") == 8 * (23 * figures.flops + 20 * figures.backward)
    shallow = count_figures(replace(like, arch_kwargs={"depth": 2}))
    assert priced(", arch_kwargs: {depth: 2}") == 8 * (23 * shallow.flops + 20 * shallow.backward)
    assert priced(", arch_kwargs: {depth: 40}") is None  # which the file does not fit


def test_timms_models_are_counted_without_their_weights_and_code_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit('it was run')\n\ndef make(): ...\n")
    names = f"timm:test_vit.r160_in1k, {{model: '{tmp_path / 'mine.py'}:make', normalize: none}}"
    head = TEXT.partition("attacks:")[0].replace("tiny-vit,", names + ",")
    timms, code, _ = plan(bench(tmp_path, head + "attacks: [fgsm]\n")).rows
    victim = Victim(timm.create_model("test_vit.r160_in1k"), name="t", num_classes=1000, input_size=160)
    assert timms.flops is not None and timms.flops > 8 * count_forward(victim)[0]
    assert code.flops is None


def test_numbers_that_can_be_read() -> None:
    assert [format_flops(v) for v in (None, 5.0, 2.5e9, 3.19e18)] == ["?", "5", "2.5G", "3.19E"]
    assert [format_hours(v) for v in (None, 0.001, 0.5, 3.0, 1234.0)] == ["?", "3.6 s", "30 min", "3.0 h", "1,234 h"]
    assert [format_bytes(v) for v in (None, 0, 5e6, 2e9)] == ["?", "", "5 MB", "2.00 GB"]
