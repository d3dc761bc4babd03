"""Prices of whole benchmarks, checks before a run, and throughput."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from vitattack.bench.cells import cells
from vitattack.bench.model_figures import figures_of
from vitattack.bench.options import BenchOptions
from vitattack.bench.plan import preflight, throughput
from vitattack.bench.plan.cost import Plan, plan_benchmark
from vitattack.bench.read.benchmark_file import read_benchmark
from vitattack.bench.run.run_benchmark import run_benchmark
from vitattack.bench.schema import Benchmark
from vitattack.core import files
from vitattack.core.errors import UsageError
from vitattack.models.zoo.entries import entries
from vitattack.report.bench_plan import format_bytes, format_flops, format_hours, plan_table

TEXT = """\
schema: 1
title: A plan
source: us
data: cifar10-demo[:8]
threats: [linf:8/255]
models: [tiny-vit, {label: theirs, published: true}]
attacks: [pgd, "transfer('tiny-cnn-standard', pgd(stop=never))"]
reference:
  - {model: tiny-vit, attack: pgd, value: 25, n: 100}
"""


def bench(folder: Path, text: str = TEXT) -> Benchmark:
    path = folder / "b.yaml"
    path.write_text(text)
    return read_benchmark(str(path))


def plan(some: Benchmark, *, throughput: float | None = None, **options: Any) -> Plan:
    return plan_benchmark(some, BenchOptions(**{"store": Path("no store"), **options}), throughput)


def test_the_price_of_a_cell_is_passes_times_recorded_figures(tmp_path: Path) -> None:
    found = plan(bench(tmp_path), throughput=1e9)
    vit, cnn = (figures_of(entries()[name]) for name in ("tiny-vit", "tiny-cnn-standard"))
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
    figures = figures_of(entries()[name])
    assert figures is not None
    weights = entries()[name].weights
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


def test_a_file_is_priced_by_its_own_shape_or_not_at_all(tmp_path: Path) -> None:
    like = entries()["tiny-vit"]
    (tmp_path / "w.safetensors").write_bytes(b"")
    row = f"{{model: {tmp_path / 'w.safetensors'}, label: mine, arch: {like.arch!r}, normalize: cifar10MORE}}"

    def priced(more: str) -> float | None:
        text = TEXT.partition("attacks:")[0].replace("[tiny-vit,", f"[{row.replace('MORE', more)},")
        return plan(bench(tmp_path, text + "attacks: [pgd]\n")).rows[0].flops

    figures = figures_of(like)
    assert figures is not None and not like.arch_kwargs
    assert priced("") == 8 * (23 * figures.flops + 20 * figures.backward)
    assert priced(", arch_kwargs: {depth: 40}") is None


def test_a_measurement_is_kept_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITATTACK_HOME", str(tmp_path))
    monkeypatch.setattr(throughput, "SECONDS", 0.0)
    some = bench(tmp_path)
    measured = dict(throughput.calibrate(cells(some), "cpu"))
    assert measured.keys() == {"tiny-vit"} and 1e6 < measured["tiny-vit"] < 1e14
    rates = throughput.MeasuredRates("cpu")
    assert rates.of("tiny-vit", 1) == throughput.Rate(measured["tiny-vit"], "measured")
    assert rates.of("tiny-cnn-standard", 1) == throughput.Rate(measured["tiny-vit"], "measured on other models")
    assert rates.of("tiny-vit", 7) is None and throughput.MeasuredRates("cuda").of("tiny-vit", 1) is None
    row = plan(some, device="cpu").rows[0]
    assert row.hours is not None and row.flops is not None
    assert row.hours == pytest.approx(row.flops / measured["tiny-vit"] / 3600)
    throughput.remember("cpu", 1, {"tiny-cnn-standard": 5e9})
    assert throughput.MeasuredRates("cpu").of("tiny-vit", 1) == rates.of("tiny-vit", 1)


@pytest.mark.parametrize(
    "content", ["", "[]", '{"schema": 2}', '{"schema": 1, "rates": {"a": 3}}', '{"schema": 1}', "[" * 9999]
)
def test_a_broken_cache_of_measurements_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    monkeypatch.setenv("VITATTACK_HOME", str(tmp_path))
    (tmp_path / throughput.FILE).write_text(content)
    assert throughput.MeasuredRates("cpu").of("tiny-vit", 1) is None


def test_a_model_of_unknown_size_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "figures_of", lambda entry: None)
    assert list(throughput.calibrate(cells(bench(tmp_path)), "cpu")) == []


def test_throughput_as_people_write_it() -> None:
    assert (
        throughput.parse_flops("20T")
        == throughput.parse_flops("2e13")
        == throughput.parse_flops("20000 GFLOP/s")
        == 2e13
    )
    assert throughput.parse_flops("312TFLOPS") == 3.12e14
    for text in ("", "fast", "-3T", "20 images/s", "1e99", "0"):
        with pytest.raises(UsageError, match="write 20T or 300G"):
            throughput.parse_flops(text)


def test_numbers_that_can_be_read() -> None:
    assert [format_flops(v) for v in (None, 5.0, 2.5e9, 3.19e18)] == ["?", "5", "2.5G", "3.19E"]
    assert [format_hours(v) for v in (None, 0.001, 0.5, 3.0, 1234.0)] == ["?", "3.6 s", "30 min", "3.0 h", "1,234 h"]
    assert [format_bytes(v) for v in (None, 0, 5e6, 2e9)] == ["?", "", "5 MB", "2.00 GB"]


# Before the first forward.


def check(some: Benchmark, folder: Path) -> None:
    preflight.check_run(some, [c for c in cells(some) if c.runnable], BenchOptions(store=folder / "runs"))


def test_options_that_do_not_suit_each_other_are_told_with_their_line(tmp_path: Path) -> None:
    some = bench(
        tmp_path, TEXT.replace("attacks: [pgd, ", "attacks:\n  - pgd\n  - pgd(steps=0)\n  - ").replace('))"]', '))"')
    )
    with pytest.raises(UsageError, match=r"b\.yaml:9: 0 steps cannot move an image: use at least 1"):
        check(some, tmp_path)


def test_a_sound_benchmark_passes(tmp_path: Path) -> None:
    check(bench(tmp_path), tmp_path)


def test_weights_that_are_not_here_need_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITATTACK_HOME", str(tmp_path))
    monkeypatch.setenv("VITATTACK_OFFLINE", "1")
    name = "rb/Debenedetti2022Light_XCiT-S12/cifar10"
    with pytest.raises(
        UsageError, match=rf"b\.yaml:6: the weights of '{name}' are not here and VITATTACK_OFFLINE is set"
    ):
        check(bench(tmp_path, TEXT.replace("[tiny-vit", f"[{name}, tiny-vit")), tmp_path)
    text = TEXT.replace("[pgd, \"transfer('tiny-cnn-standard'", f"[pgd, {{label: T, attack: \"transfer('{name}'")
    crafted = bench(tmp_path, text.replace('=never))"]', '=never))"}]'))
    with pytest.raises(UsageError, match=rf"b\.yaml:7: the weights of '{name}' are not here .*--skip T$"):
        check(crafted, tmp_path)
    assert [cell.attack_label for cell in cells(crafted, skip=["T"]) if cell.runnable] == ["pgd"]


def test_weights_that_were_changed_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = tmp_path / "embedded"
    copied.mkdir()
    entry = entries()["tiny-cnn-standard"]
    assert entry.weights is not None and entry.weights.file is not None
    content = bytearray((preflight.EMBEDDED / entry.weights.file).read_bytes())
    content[-1] ^= 1
    (copied / entry.weights.file).write_bytes(content)
    monkeypatch.setattr(preflight, "EMBEDDED", copied)
    text = TEXT.replace("[tiny-vit,", "[tiny-cnn-standard,").replace("model: tiny-vit", "model: theirs")
    with pytest.raises(UsageError, match=r"b\.yaml:6: it has sha256 .* the zoo says 691f11c30118"):
        check(bench(tmp_path, text), tmp_path)


def test_a_full_disk_is_seen_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage(NamedTuple):
        total: int = 10**9
        used: int = 10**9 - 1000
        free: int = 1000

    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage())
    monkeypatch.setenv("VITATTACK_HOME", str(tmp_path / "home"))
    with pytest.raises(UsageError, match="the records need .* give another --out"):
        check(bench(tmp_path), tmp_path)
    text = TEXT.replace("[tiny-vit", "[rb/Debenedetti2022Light_XCiT-S12/cifar10, tiny-vit")
    with pytest.raises(UsageError, match=r"the weights need 0\.\d GB .* set VITATTACK_HOME"):
        check(bench(tmp_path, text), tmp_path)


def test_images_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*given: Any, **more: Any) -> None:
        raise AssertionError("nothing is to be fetched")

    monkeypatch.setattr(files, "cache_folder", nothing)
    text = TEXT.replace("cifar10-demo[:8]", "cifar10-c/fog/3")
    with pytest.raises(UsageError, match=r"b\.yaml: .*no --data-dir is given"):
        check(bench(tmp_path, text), tmp_path)
