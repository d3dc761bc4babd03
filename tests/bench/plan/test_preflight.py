"""Checks before the first forward of a run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.bench.plan.making import TEXT, bench
from vitattack.bench.cells import cells
from vitattack.bench.options import BenchOptions
from vitattack.bench.plan import preflight
from vitattack.bench.schema import Benchmark
from vitattack.core import files
from vitattack.core.errors import UsageError
from vitattack.models.zoo.catalogue import zoo_entries


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
    entry = zoo_entries()["tiny-cnn-standard"]
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
