"""Identities of effectiveness and convergence: linear models in closed form, oracles, checkpoints, images that do not fit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.conftest import batch, linear_victim, tiny_vit
from tests.train.small_runs import run, small
from vitattack.analyses.analyze import analyze
from vitattack.analyses.findings import Findings
from vitattack.analyses.intervals import mean_of, ratio_of
from vitattack.core.errors import UsageError
from vitattack.models.victim import Victim
from vitattack.train.run_folder import TrainedRun

EPS = 4 / 255


def single_linear() -> tuple[Victim, Tensor]:
    """The linear victim in float32, as images are read."""
    victim, slope = linear_victim()
    return victim.float(), slope


def single_batch(n: int) -> tuple[Tensor, Tensor]:
    x, y = batch(n)
    return x.float(), y


def of_rows(found: Findings, key: str, name: str) -> dict[Any, Any]:
    return {row[key]: row[name] for row in found.rows}


def test_on_a_linear_model_one_step_is_as_good_as_the_oracle() -> None:
    """The sign of the gradient never changes, and all attacks go 1.5 eps from equal starts: they end at the same point."""
    victim, _ = single_linear()
    found = analyze(
        "effectiveness", victim, data=single_batch(6), threat="linf:4/255", steps=(1, 2, 5), oracle=20, threads=1
    )
    for row in found.rows:
        assert abs(float(row["d"] or 0)) < 1e-5 and abs(float(row["median"] or 0)) < 1e-5
        assert row["oracle_loss"] > row["clean_loss"]  # type: ignore[operator]


def test_the_loss_of_a_linear_model_is_its_closed_form() -> None:
    """A long run ends at the vertex, whatever its start: the margin rises by eps times the l1 norm of the slope."""
    victim, slope = single_linear()
    x, y = single_batch(3)
    found = analyze(
        "convergence", victim, data=(x, y), threat="linf:4/255", steps=(1, 50), restarts=2, long=12, threads=1
    )
    with torch.no_grad():
        logits = victim(x)
    margins = logits[:, 1] - logits[:, 0] + EPS * slope.abs().sum()
    expected = torch.nn.functional.softplus(margins).tolist()
    ways = [figure for figure in found.figures if "runs of 12 steps" in figure.title]
    ends = [series.y[-1] for figure in ways for series in figure.series]  # type: ignore[union-attr]
    assert len(ends) == 2
    assert any(all(end == pytest.approx(loss, rel=1e-4) for end in ends) for loss in expected)
    # 1.5 eps do not carry every pixel to the vertex: three quarters of the starts get there, the others 0.75 eps on average
    short = EPS * slope.abs().sum().item() * (1 - 0.25 * 0.25)
    reached = [math.log(math.expm1(float(row["loss"] or 0))) for row in found.rows if row["steps"] == 50]
    clean = (logits[:, 1] - logits[:, 0]).tolist()
    for margin, before in zip(reached, clean, strict=True):
        assert margin - before == pytest.approx(short, rel=0.05)


def test_few_steps_are_weaker_than_more_and_than_the_oracle(toy_images: tuple[Tensor, Tensor]) -> None:
    found = analyze(
        "effectiveness", tiny_vit(), data=toy_images, steps=(1, 2, 5, 10), oracle=20, seeds=2, batch_size=5, threads=1
    )
    d = of_rows(found, "steps", "d")
    assert d[1] < d[5] <= d[10] + 0.01 and d[1] < d[2]
    assert all(value <= 0 for value in d.values())
    assert all(row["low"] < row["d"] < row["high"] for row in found.rows)  # type: ignore[operator]
    again = analyze(
        "effectiveness", tiny_vit(), data=toy_images, steps=(1,), oracle=20, seeds=2, batch_size=12, threads=1
    )
    assert again.rows[0]["d"] == pytest.approx(d[1], abs=1e-4)  # whatever the batch


def test_one_image_has_no_interval(toy_images: tuple[Tensor, Tensor]) -> None:
    x, y = toy_images
    for name, parameters in (("effectiveness", {"oracle": 2, "seeds": 1}), ("convergence", {"long": 2})):
        found = analyze(name, tiny_vit(), data=(x[:1], y[:1]), steps=(1,), threads=1, **parameters)
        assert found.rows[0].get("low") is None
        assert "nan" not in found.tables()[0].markdown()


def test_images_that_are_misclassified_already_do_not_count_for_convergence(toy_images: tuple[Tensor, Tensor]) -> None:
    x, y = toy_images
    wrong = (y + 1) % 10
    with pytest.raises(UsageError, match="none of these images correctly"):
        analyze("convergence", tiny_vit(), data=(x[:2], wrong[:2]), steps=(1,), restarts=1, long=1, threads=1)
    mixed = torch.cat([y[:2], wrong[2:4]])
    found = analyze("convergence", tiny_vit(), data=(x[:4], mixed), steps=(1,), restarts=1, long=1, threads=1)
    assert [row["index"] for row in found.rows] == [0, 1]
    assert found.figures[1].title in {f"toy: image {row} in runs of 1 steps" for row in (0, 1)}


@pytest.mark.parametrize("steps", [(), (0, 1), (2, 2)])
def test_steps_that_are_none_are_refused(steps: tuple[int, ...]) -> None:
    for name in ("effectiveness", "convergence", "pgd-steps"):
        with pytest.raises(UsageError, match="steps"):
            analyze(name, tiny_vit(), steps=steps)


def test_pgd_steps_stand_beside_table_x(toy_images: tuple[Tensor, Tensor]) -> None:
    found = analyze("pgd-steps", tiny_vit(), data=toy_images, steps=(5, 1), threads=1)
    accuracy = of_rows(found, "steps", "accuracy")
    assert accuracy[0] == 1.0 and accuracy[5] <= accuracy[1]
    table = found.tables()[0]
    assert list(table.columns)[2:] == ["XCiT-S12", "XCiT-M12", "XCiT-L12"]
    assert table.rows[2][2:] == ("49.2", "52.0", "53.8")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    recipe = small(data="cifar10-calib[limit:24]", hooks=(), objective="standard")
    return run(recipe, tmp_path_factory.mktemp("trained"), keep=100)


def test_a_training_run_stands_for_its_epochs(trained: TrainedRun) -> None:
    found = analyze("effectiveness", str(trained.folder), limit=4, steps=(1,), oracle=2, seeds=1, threads=1)
    assert of_rows(found, "epoch", "steps") == {1: 1, 2: 1}
    assert found.figures[-1].title == f"Effectiveness over the training of {trained.folder.name}"
    losses = of_rows(found, "epoch", "clean_loss")
    assert losses[1] != losses[2]


def test_a_folder_without_epochs_is_refused(tmp_path: Path, trained: TrainedRun) -> None:
    with pytest.raises(UsageError, match="holds no checkpoint of the end of an epoch"):
        analyze("effectiveness", str(tmp_path), limit=2)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-000000003.pt").write_bytes(b"nothing")
    with pytest.raises(UsageError, match="holds no checkpoint of the end of an epoch"):
        analyze("effectiveness", str(tmp_path), limit=2)
    whole = next((trained.folder / "checkpoints").glob("*.pt"))
    (tmp_path / "checkpoints" / whole.name).write_bytes(whole.read_bytes())
    with pytest.raises(UsageError, match="not finished"):
        analyze("effectiveness", str(tmp_path), limit=2)


def test_intervals_by_hand() -> None:
    mean = mean_of([1.0, 3.0])
    assert mean.value == 2 and mean.high == pytest.approx(2 + 1.959964 * 1.0)
    ratio = ratio_of([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    assert ratio == (0.5, 0.5, 0.5)
    assert mean_of([5.0]) == (5.0, None, None)
    assert math.isnan(ratio_of([1.0], [0.0]).value)
