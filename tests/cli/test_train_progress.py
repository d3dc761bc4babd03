"""The progress of a training run: every long stage shows itself."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from vitattack.cli.progress import train_progress
from vitattack.cli.progress.train_progress import Stage, TrainingScreen

from tests.train.small_runs import small
from vitattack.train.loop.reporter import Reporter
from vitattack.train.run_recipe import plan_training, train


class Stages(Reporter):
    def __init__(self) -> None:
        self.told: list[tuple[str, int, int]] = []

    def stage(self, what: str, done: int, total: int) -> None:
        self.told.append((what, done, total))


def test_every_stage_of_a_run_is_told_from_beginning_to_end(tmp_path: Path) -> None:
    stages = Stages()
    recipe = small(hooks=("aas_at(every=1, batches=1, steps=2)",), epochs=2)
    train(recipe, out=tmp_path, device="cpu", threads=1, reporter=stages)
    names = list(dict.fromkeys(what for what, _, _ in stages.told))
    wanted = ["reading the data", "building the model", "epoch 1", "probing", "searching attention scales", "epoch 2"]
    assert names == wanted
    for name in names:
        done = [(d, total) for what, d, total in stages.told if what == name]
        assert done[0][0] == 0 and done[-1][0] == done[-1][1] > 0, name
    stages.told.clear()
    plan_training(recipe, device="cpu", threads=1, reporter=stages)
    assert ("timing steps", 0, 11) in stages.told and stages.told[-1] == ("timing steps", 11, 11)


def test_a_long_stage_speaks_up_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train_progress, "SECONDS_BETWEEN_LINES", 0.05)
    monkeypatch.setattr(train_progress, "SECONDS_BETWEEN_LOOKS", 0.01)
    for quiet in (False, True):
        with TrainingScreen(quiet) as screen:
            screen.stage("reading [/data]", 0, 1)
            time.sleep(0.5)
            screen.stage("reading [/data]", 1, 1)
        assert ("reading [/data]: 0 s\n" in capfd.readouterr().err) is not quiet


def test_a_stage_says_how_long_it_took_and_will_take() -> None:
    assert Stage("probing", 100.0, 30, 90).line(130.0) == "probing: 30 of 90 30 s, about 60 s left"
    assert Stage("probing", 100.0, 0, 90).line(130.0) == "probing: 0 of 90 30 s"
