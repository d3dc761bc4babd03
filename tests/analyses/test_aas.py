"""Figures of the AAS paper: what is run, and the ends of its curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.analyses.quick import SHORT_SEARCH
from tests.conftest import tiny_vit
from tests.models.blocks.families import plain_vit, windowed_swin, xcit
from vitattack.analyses.aas.questions import ScaledBlocks
from vitattack.analyses.analyze import analyze
from vitattack.core.errors import UsageError
from vitattack.models.victim import Victim


def test_no_layer_scaled_is_the_inner_attack(toy_images: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    settings: dict[str, Any] = {"data": toy_images, "limit": 4, "threads": 1, "out": tmp_path, **SHORT_SEARCH}
    found = analyze("scaled-blocks", tiny_vit(), counts=(1, 2), **settings)
    assert (found.rows[0]["layers scaled"], found.rows[0]["attack"]) == ("0", "pgd(steps=1)")
    assert "blocks=(0,)" in str(found.rows[1]["attack"]) and "blocks" not in str(found.rows[2]["attack"])
    beside = analyze("aas-depth", tiny_vit(), **settings)  # the same runs of the store
    assert beside.rows[0]["layers"] == "2 (toy)"
    assert [row["correct"] for row in beside.rows] == [found.rows[0]["correct"], found.rows[2]["correct"]]
    with pytest.raises(UsageError, match="'toy' has 2 attention layers"):
        analyze("scaled-blocks", tiny_vit(), counts=(3,), **settings)


def test_gaps_are_those_of_the_diagnosis(toy_images: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    from vitattack.diagnostics.diagnose import diagnose

    found = analyze("softmax-gaps", tiny_vit(), data=toy_images, limit=4, threads=1, out=tmp_path, **SHORT_SEARCH)
    plain = diagnose(tiny_vit(), data=toy_images, limit=4, threads=1, gradient_images=1)
    before = [row["gap_max"] for row in found.rows if row["side"] == "before"]
    after = [row["gap_max"] for row in found.rows if row["side"] == "after"]
    assert before == [block.summary["gap_max"] for block in plain.blocks] and after != before
    assert sum(found.figures[0].series[0].y) == pytest.approx(1)  # type: ignore[union-attr,arg-type]


def test_models_without_attention_and_wrong_words_are_refused() -> None:
    with pytest.raises(UsageError, match="'tiny-cnn-standard' has no attention that I can see"):
        analyze("aas-depth", "tiny-cnn-standard", limit=2, threads=1)
    with pytest.raises(UsageError, match="no place for the number of steps"):
        analyze("aas-steps", "tiny-vit", inner="pgd")
    with pytest.raises(UsageError, match="from 1 on, each named once"):
        ScaledBlocks(counts=(0,))


@pytest.mark.parametrize(
    ("victim", "layers"), [(plain_vit(), 3), (windowed_swin(), 4), (xcit(), 4)], ids=lambda each: str(each)
)
def test_other_families(victim: Victim, layers: int, toy_images: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    x = toy_images[0][:6]
    with torch.no_grad():
        y = victim(x).argmax(1)
    found = analyze("aas-depth", victim, data=(x, y), limit=2, threads=1, out=tmp_path, **SHORT_SEARCH)
    assert [row["layers"] for row in found.rows] == [f"{layers} ({victim.name})"] * 2
