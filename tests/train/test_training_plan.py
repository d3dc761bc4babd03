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
from vitattack.train.data.batch import Batch
from vitattack.train.data.streams import ShuffledStream
from vitattack.train.hooks.awp import Awp
from vitattack.train.hooks.base import RunState
from vitattack.train.loop.training_loop import TrainingLoop
from vitattack.train.parts import build_parts
from vitattack.train.recipe import Recipe
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
