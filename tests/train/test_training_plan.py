"""Figures of a plan against those of the model, and its hours against its steps."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from vitattack.cli.main import main

from tests.conftest import tiny_vit
from tests.train.small_runs import small
from vitattack.core.errors import UsageError
from vitattack.train.courses import load_recipe
from vitattack.train.data.batch import Batch
from vitattack.train.data.stand_in_data import stand_in_data
from vitattack.train.data.streams import ShuffledStream
from vitattack.train.hooks.awp import Awp
from vitattack.train.hooks.base import RunState
from vitattack.train.loop.training_loop import TrainingLoop
from vitattack.train.recipe import Recipe
from vitattack.train.recipe_file import shipped_recipes
from vitattack.train.recipe_parts import build_parts, canonical_recipe
from vitattack.train.run_recipe import plan_training
from vitattack.train.training_plan import measure_plan


class Slow(ShuffledStream):
    """Batches that say how often they were asked for."""

    asked = 0

    def batch(self, *args: object) -> Batch:
        self.asked += 1
        return super().batch(*args)  # type: ignore[arg-type]


def test_a_plan_counts_steps_and_measures_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    x = (torch.rand(40, 3, 32, 32) * 255).byte()
    stream = Slow.of_tensors(x, torch.arange(40) % 10, num_classes=10, batch_size=8, seed=0)
    victim = tiny_vit()
    recipe = Recipe("test", "", objective="fgsm", hooks=("aas_at", "grad_clip(1.0)"), epochs=6, batch_size=8)
    made = build_parts(recipe)
    for hook in made.hooks:
        hook.wrap(victim)
    run = RunState(victim, victim, made.optimiser(victim), 8 / 255, 0, epochs=6, steps=stream.steps)
    clock = iter(range(1000))  # every look at the clock takes a second
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    found = measure_plan(TrainingLoop(run, made, stream))
    assert stream.asked == 11
    assert found.parameters == sum(p.numel() for p in tiny_vit().parameters())
    assert found.steps == 30 and found.steps_per_epoch == 5
    assert found.seconds == 3  # the loop looks at the clock twice inside
    assert found.hours == pytest.approx(30 * 3 / 3600)
    tokens, width = 64, 32
    blocks = 2 * (2 * tokens * width * 12 * width + 4 * tokens * tokens * width)
    assert blocks < found.flops < 1.5 * blocks
    assert found.json()["hours"] == found.hours


def test_a_plan_counts_what_hooks_do_after_their_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """AWP looks for its weights once per run and once per step that it disturbs."""
    looks, chosen = [0], Awp._chosen

    def counted(self: Awp, module: nn.Module) -> dict[str, Tensor]:
        looks[0] += 1
        return chosen(self, module)

    monkeypatch.setattr(Awp, "_chosen", counted)
    plan_training(small(hooks=("awp(warmup=1)",), epochs=2), device="cpu", threads=1)
    assert looks == [12]


def test_a_plan_of_no_epochs_takes_no_time() -> None:
    found = plan_training(small(epochs=0, rate="cosine"), device="cpu", threads=1)
    assert (found.steps, found.hours, found.epochs) == (0, 0, 0) and found.seconds > 0


def test_the_command_prices_a_recipe_and_stores_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["data=cifar10-demo", "validation=100", "batch_size=4", "probe=4", "arch_kwargs={embed_dim: 16, depth: 1}"]
    options = ["--plan", "--json", "--out", str(tmp_path / "runs"), "--device", "cpu", "--threads", "1"]
    with pytest.raises(SystemExit) as left:
        monkeypatch.setattr(sys, "argv", ["vitattack", "train", "aas-at-tiny", *words, *options])
        main()
    assert not left.value.code
    found = json.loads(capfd.readouterr().out)["plan"]
    assert found["steps"] == 225 * 13 and found["hours"] == pytest.approx(found["steps"] * found["seconds"] / 3600)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", [name for name in shipped_recipes() if not name.endswith("-tiny")])
def test_every_recipe_has_stand_in_data_without_files_or_network(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITATTACK_OFFLINE", "1")
    recipe = canonical_recipe(load_recipe(name))
    found = stand_in_data(recipe, lambda: 224)
    x, y = found.train.batch(0, 0)
    assert len(x) == len(y) == recipe.batch_size and x.dtype == torch.uint8
    if recipe.data.startswith("folder:"):
        assert not found.counted and "'imagenet/train' does not exist" in found.assumed[0] and x.shape[-1] == 256
    else:
        assert found.counted and x.shape[1:] == (3, 32, 32)
        assert found.train.steps == -(-(50_000 - recipe.validation) // recipe.batch_size) - (recipe.synthetic is None)


PLAN = ["--plan", "--json", "--device", "cpu", "--threads", "1"]
FEW = [
    "arch=vit_tiny_patch4_32",
    "arch_kwargs={embed_dim: 16, depth: 1, num_heads: 2}",
    "batch_size=8",
    "precision=fp32",
]


@pytest.mark.parametrize(
    ("words", "steps", "assumed"),
    [
        (["aas-at"], 110 * 6125, ["'cifar10_ddpm.npz' does not exist; its images are taken to be like those of"]),
        (["trades-awp", "synthetic=null", "share=0"], None, []),
        (
            [
                "light",
                "arch_kwargs={img_size: 32, embed_dim: 16, depth: 1, num_heads: 2}",
                "augment=resized_crop(size=32)",
            ],
            None,
            ["'imagenet/train' does not exist; the number of its images is unknown", "1000 are assumed"],
        ),
        (["light-finetune", "data=cifar10-train@none"], None, None),
    ],
)
def test_a_plan_needs_neither_the_data_nor_the_weights(
    words: list[str],
    steps: int | None,
    assumed: list[str] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for name, value in {"VITATTACK_OFFLINE": "1", "HF_HOME": str(tmp_path), "VITATTACK_HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["vitattack", "train", words[0], *FEW, *words[1:], *PLAN])
    with pytest.raises(SystemExit) as left:
        main()
    out, err = capfd.readouterr()
    if assumed is None:
        assert left.value.code == 2 and err.count("\n") == 1
        return
    assert not left.value.code, err
    found = json.loads(out)["plan"]
    assert found["seconds"] > 0 and len(found["assumed"]) == len(assumed)
    assert all(words in said for words, said in zip(assumed, found["assumed"], strict=True))
    if "light" in words:
        assert found["steps"] is None and found["hours"] is None and found["steps_per_epoch"] is None
    elif steps is not None:
        assert found["steps"] == steps


def test_a_plan_of_weights_that_cannot_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="correct init"):
        plan_training(small(init="nowhere"), device="cpu", threads=1)


def test_a_slow_machine_makes_fewer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 100_000, 10))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    found = plan_training(small(), device="cpu", threads=1)
    assert found.measured == 2 and found.seconds == 30
