"""Many models at once: the numbers are those of the store and the zoo, and nothing is opened."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from torch import Tensor

from tests.conftest import tiny_vit
from vitattack.analyses.analyze import analyze
from vitattack.analyses.landscape.scaling import rank_correlation
from vitattack.core.errors import UsageError
from vitattack.evaluation.evaluate import evaluate
from vitattack.evaluation.setup import Setup
from vitattack.models.zoo.catalogue import zoo_entries
from vitattack.models.zoo.reported import lowest_reported


def test_published_points_are_those_of_the_zoo(tmp_path: Path) -> None:
    found = analyze("scatter", "rb/Debenedetti2022Light_XCiT*", data="imagenet", threat="linf:4/255", out=tmp_path)
    by_model = {row["model"]: row for row in found.rows}
    small = by_model["rb/Debenedetti2022Light_XCiT-S12/imagenet"]
    assert (small["clean"], small["robust"]) == (0.7234, 0.4178) and small["family"] == "XCiT" and small["n"] == 5000
    assert small["low"] and small["high"] and small["low"] < 0.4178 < small["high"]
    robust = [row["robust"] for row in found.rows]
    assert robust == sorted(robust, reverse=True)
    found.save_plot(tmp_path / "figure.png")


def test_stored_runs_stand_beside(tmp_path: Path) -> None:
    setup = Setup(data="cifar10-demo", limit=4, threads=1, out=tmp_path)
    weak = evaluate("tiny-vit", ["random"], threat="linf:8/255", setup=setup)
    strong = evaluate("tiny-vit", ["fgsm"], threat="linf:8/255", setup=setup)
    found = analyze("scatter", "tiny-vit", out=tmp_path, published=False)
    (row,) = found.rows
    assert row["robust"] == min(weak[0].robust.accuracy, strong[0].robust.accuracy) and row["n"] == 4
    assert row["origin"] == "stored" and "cifar10-demo[:4]" in str(row["about"])
    sizes = analyze("scaling", "tiny-vit*", out=tmp_path)
    assert {(each["parameters"], each["flops"]) for each in sizes.rows} == {(1275018, 173902336)}
    with pytest.raises(UsageError, match=r"holds no finished run on cifar10 under linf:4/255"):
        analyze("scatter", out=tmp_path, threat="linf:4/255", published=False)


def test_numbers_over_other_data_sets_are_not_those_of_the_entry() -> None:
    entry = next(e for e in zoo_entries().values() if any(r.protocol.startswith("mean of") for r in e.reported))
    found = lowest_reported(entry, "robust", "linf:4/255")
    assert found is None or not found.protocol.startswith("mean of")


def test_rank_correlation_against_hand_values() -> None:
    assert rank_correlation([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 2, 3, 4, 5], [2, 1, 4, 3, 5]) == pytest.approx(0.8)  # 1 - 6 * 4 / (5 * 24)
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None


def test_wrong_words(tmp_path: Path, toy_images: tuple[Tensor, Tensor]) -> None:
    for words, message in (
        ({"models": "no-such-model*"}, "nothing is stored or published of 'no-such-model"),
        ({"threat": "linf:4/255,8/255"}, "is of one budget"),
        ({"data": "cifar10[:100]"}, "is of whole data sets"),
        ({"limit": 10}, "is of whole data sets"),
    ):
        with pytest.raises(UsageError, match=message):
            analyze("scatter", out=tmp_path, **words)
    with pytest.raises(UsageError, match="nothing is stored or published of 'toy'"):
        analyze("scatter", tiny_vit(), out=tmp_path)


def test_torch_is_not_imported() -> None:
    code = (
        "import sys\n"
        "from vitattack.cli.main import cli\n"
        "cli.main(['analyze', 'scaling'], standalone_mode=False)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, timeout=120)
