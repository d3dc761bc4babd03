"""Contract of every analysis: it is described, it runs, is stored whole, and goes on where it was stopped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from tests.analyses.quick import QUICK
from tests.conftest import small_tora, tiny_vit
from vitattack.analyses.analyze import SETUP, analyze
from vitattack.analyses.catalogue import ANALYSES
from vitattack.analyses.findings import Findings, restored
from vitattack.data import DataSet
from vitattack.report.analyses import analysis_description

OF_MODELS = [name for name in ANALYSES.in_order if not ANALYSES[name].from_store and not ANALYSES[name].data]
# These are runs of `evaluate`, whose batches have tests of their own; its doubts look at a few images more.
OF_EVALUATIONS = {
    "pgd-steps",
    "eps-sweep",
    "curve",
    "patch-certificate",
    "softmax-gaps",
    "scaled-blocks",
    "aas-depth",
    "aas-steps",
    "aas-eps",
}


def test_every_analysis_is_described_and_has_quick_words() -> None:
    assert set(QUICK) == set(OF_MODELS)
    for name in ANALYSES.in_order:
        kind = ANALYSES[name]
        assert kind.summary() and kind.paper, name
        assert not set(kind.parameters()) & set(SETUP), name
        assert analysis_description(name)[1]["name"] == name


class Watched:
    """Images that count how many of them are asked for at once."""

    num_classes = None

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y, self.most = x, y, 0

    def __len__(self) -> int:
        return len(self.x)

    def read(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        self.most = max(self.most, len(rows))
        return self.x[list(rows)], self.y[list(rows)]

    def digest(self, rows: Sequence[int]) -> str:
        return f"watched {rows}"


@pytest.mark.parametrize("name", OF_MODELS)
def test_findings_survive_the_store_and_have_a_figure(
    name: str, toy_images: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    quick = QUICK[name]
    models: list[Any] = [(small_tora if quick.tora else tiny_vit)(seed) for seed in range(quick.models)]
    # those beyond the limit are for attacks that learn from other images
    source = Watched(*(part[:9] for part in toy_images))
    data = DataSet("watched", source, tuple(range(9)))
    common: dict[str, Any] = {"data": data, "limit": 6, "batch_size": 3, "threads": 1, "out": tmp_path}
    settings = {**common, **quick.parameters}
    found = analyze(name, models, threat=quick.threat, **settings)
    assert found.rows and found.printed and found.n <= 6
    assert name in OF_EVALUATIONS or source.most <= 3, "memory does not grow with the images"
    again = restored(json.loads(json.dumps(found.stored(), allow_nan=False)))
    assert again.json() == found.json()
    assert [table.markdown() for table in again.tables()] == [table.markdown() for table in found.tables()]
    _draws_the_same(found, again, tmp_path)
    assert len(found.frame()) == len(found.rows)
    assert analyze(name, models, threat=quick.threat, **settings).json()["rows"] == found.json()["rows"]


def _draws_the_same(found: Findings, again: Findings, folder: Path) -> None:
    for name, findings in (("a.png", found), ("b.png", again)):
        findings.save_plot(folder / name)
    assert (folder / "a.png").read_bytes() == (folder / "b.png").read_bytes()
