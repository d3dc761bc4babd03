"""Throughput: parsed, measured, kept and used."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from torch import Tensor, nn

from tests.bench.plan.making import TEXT, bench, plan
from vitattack.bench.cells import cells
from vitattack.bench.plan import throughput
from vitattack.bench.plan.sizes import SizedModel, sized_model
from vitattack.core.errors import UsageError
from vitattack.models.victim import Victim
from vitattack.models.zoo.figures import ModelFigures


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
    monkeypatch.setattr(throughput, "sized_model", lambda cell: None)
    assert list(throughput.calibrate(cells(bench(tmp_path)), "cpu")) == []
    assert list(throughput.measure_one(cells(bench(tmp_path)), "cpu")) == []


def test_one_model_is_measured_where_nothing_is_known_and_never_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITATTACK_HOME", str(tmp_path))
    monkeypatch.setattr(throughput, "SECONDS", 0.0)
    text = TEXT.replace("[tiny-vit,", "[tiny-vit, tiny-vit-standard, tiny-cnn-standard,")
    some = cells(bench(tmp_path, text))
    flops = {cell.model: sized.figures.flops for cell in some if cell.runnable and (sized := sized_model(cell))}
    [(name, rate)] = throughput.measure_one(some, "cpu")
    assert name in flops and sorted(flops.values())[1] == flops[name] and rate > 1e6
    assert all(row.hours is not None for row in plan(bench(tmp_path, text), device="cpu").to_run)
    assert list(throughput.measure_one(some, "cpu")) == []


def test_a_slow_model_is_measured_on_few_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty milliseconds an image: a batch of 64 would take two seconds, and the measurement takes a tenth of one."""
    monkeypatch.setattr(throughput, "SECONDS", 0.1)
    seen: list[int] = []

    class Slow(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(len(x))
            time.sleep(0.03 * len(x))
            return x.flatten(1)[:, :10]

    victim = Victim(Slow(), name="slow", num_classes=10, input_size=8)
    sized = SizedModel(ModelFigures(0, 200, 100, ()), lambda: victim)
    rate = throughput.measure(sized, 64, "cpu", 1)
    assert max(seen) <= 4 and rate == pytest.approx(300 / 0.03, rel=0.2)


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
