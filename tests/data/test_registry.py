"""A data set of another package: one object, found wherever data sets are named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from vitattack.bench.read.unopened_data import look_up_data
from vitattack.core.errors import UsageError
from vitattack.data import check_data, load_data, takes_transform
from vitattack.data.catalogue import DATA_SETS
from vitattack.data.entry import EntryDefaults, OpenedSet


@dataclass(frozen=True)
class Stripes(EntryDefaults):
    """Twelve striped images of 10 classes."""

    summary: str = "striped images"
    rows: int = 12
    num_classes: int = 10
    origin: str = "made here"

    def open(self, data_dir: Path | None, part: str = "", transform: str = "none") -> OpenedSet:
        from vitattack.data.formats.row_sources import TensorSource

        x = torch.linspace(0, 1, 32).expand(self.rows, 3, 32, 32)
        return OpenedSet(TensorSource(x, torch.arange(self.rows) % self.num_classes, self.num_classes))


@pytest.fixture(autouse=True)
def stripes() -> Iterator[None]:
    with DATA_SETS.temporarily("stripes", Stripes()):
        yield


def test_a_planted_set_is_loaded_listed_checked_and_known_to_bench() -> None:
    data = load_data("stripes[:5]")
    assert data.text == "stripes[:5]" and data.read(data.rows)[0].shape == (5, 3, 32, 32)
    assert look_up_data("stripes[2:]").n == 10 and not takes_transform("stripes")
    assert check_data("stripes[:5]").total == 12
    for text, message in (("stripes/some", "is no part of 'striped images'"), ("stripe", "did you mean stripes")):
        for call in (check_data, load_data, look_up_data):
            with pytest.raises(UsageError, match=message):
                call(text)


def test_a_planted_set_is_evaluated_listed_and_described_by_the_command_line(tmp_path: Path) -> None:
    from vitattack.cli.main import cli

    def run(*words: str) -> object:
        done = CliRunner().invoke(cli, [*words, "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    assert {
        "name": "stripes",
        "images": "12",
        "classes": "10",
        "where": "embedded",
        "what it is": "striped images",
    } in (run("data", "list"))
    described = run("data", "info", "stripes")
    assert isinstance(described, dict) and described["n"] == 12 and described["opened"]
    result = run("eval", "tiny-vit", "fgsm", "--data", "stripes", "--limit", "4", "--out", str(tmp_path))
    assert isinstance(result, dict) and result["n"] == 4 and result["data"] == "stripes[:4]"


def test_a_set_comes_through_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    from vitattack.core.registry import Registry
    from vitattack.data.entry import DataEntry

    class Point:
        name, module, attr = "striped", __name__, "SET"

    monkeypatch.setattr("vitattack.core.registry.entry_points", lambda group: [Point()])
    registry: Registry[DataEntry] = Registry("data set", entry_point_group="vitattack.data")
    assert registry["striped"] is SET


SET = Stripes()
