"""Stages of an evaluation: none looks hung, on a terminal or in a pipe."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from rich.console import Console
from vitattack.cli.progress import download_progress, stages
from vitattack.cli.progress.bars import bar
from vitattack.cli.progress.download_progress import DownloadScreen
from vitattack.cli.progress.eval_progress import EvaluationScreen
from vitattack.cli.progress.stages import Stage, StageBoard

from vitattack.core.progress import Listener, current_listener, in_stage, listening, stage
from vitattack.evaluation.evaluate import evaluate


class Stages(Listener):
    def __init__(self) -> None:
        self.told: list[tuple[str, int, int]] = []

    def stage(self, what: str, done: int, total: int) -> None:
        self.told.append((what, done, total))


@pytest.mark.parametrize(
    ("attack", "inside"),
    [
        ("auto(passes=150)", ["checking the model", "looking at gradients and attention", "targets", "runs", "steps"]),
        (
            "aas(pgd(steps=1), steps=1, restarts=2, calibration=4)",
            ["preparing the attack", "searching attention scales", "ranking attention scales", "steps"],
        ),
        ("worst(square(queries=3), fab(steps=1))", ["runs", "queries", "steps"]),
    ],
)
def test_every_stage_is_told_from_beginning_to_end(tmp_path: Path, attack: str, inside: list[str]) -> None:
    with listening(listener := Stages()):
        evaluate("tiny-vit", attack, limit=4, threads=1, out=tmp_path, seed=7)
    names = {what for what, _, _ in listener.told}
    for name in ("opening the model", "opening the images", "hashing the model", "hashing the images", *inside):
        assert any(each.split(", round")[0] == name for each in names), (name, names)
    for name in names:
        parts = [(done, total) for what, done, total in listener.told if what == name]
        assert parts[0][0] == 0 and parts[-1][0] == parts[-1][1] > 0, name


def test_a_stage_that_fails_or_is_left_has_ended() -> None:
    with listening(listener := Stages()):
        with pytest.raises(KeyError), stage("reading"):
            raise KeyError
        for item in in_stage("steps", range(9)):
            if item == 1:
                break
    assert listener.told == [("reading", 0, 1), ("reading", 1, 1), *[("steps", n, 9) for n in (0, 1, 9)]]


def test_a_line_in_a_pipe_now_and_then(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("SECONDS_BETWEEN_LINES", "SHOWN_AFTER"):
        monkeypatch.setattr(stages, name, 0.02)
    monkeypatch.setattr(stages, "SECONDS_BETWEEN_LOOKS", 0.01)
    for quiet in (False, True):
        with EvaluationScreen(quiet):
            report = current_listener().stage
            report("auto [/x]", 0, 200)
            report("steps", 2, 6)
            time.sleep(0.2)
        said = capfd.readouterr().err
        assert ("auto [/x]: 0 of 200, steps: 2 of 6 (0 s)\n" in said) is not quiet and (said != "") is not quiet


def test_the_expected_time_is_that_of_the_first_stage_that_has_one() -> None:
    console = Console(file=io.StringIO())
    board = StageBoard(bar(console, quiet=True), console, quiet=True)
    board._stages = {
        "auto": Stage("auto", 100.0, 0, 200, state="clean 50%"),
        "targets": Stage("targets", 110.0, 1, 3),
        "steps": Stage("steps", 128.0, 2, 6),
    }
    assert (
        board.line(130.0) == "auto: 0 of 200 clean 50%, targets: 1 of 3, steps: 2 of 6 (30 s, targets about 40 s left)"
    )
    board._stages = {"auto": Stage("auto", 100.0, 80, 100, before=60)}
    assert board.line(130.0) == "auto: 80 of 100 (30 s, about 30 s left)"
    assert Stage("auto", 100.0, 1, 3, moved=120.0).left(130.0) == ", about 30 s left"


def test_bars_on_a_terminal_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "SHOWN_AFTER", 0.02)
    monkeypatch.setattr(stages, "SECONDS_BETWEEN_LOOKS", 0.01)
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    progress = bar(console, quiet=False)
    with StageBoard(progress, console, quiet=False) as board:
        board.tell("targets " + "x" * 90, 1, 3)
        board.tell("hashing", 0, 1)
        time.sleep(0.3)
        assert [task.description for task in progress.tasks] == ["  targets " + "x" * 90, "  hashing"]
        assert [(task.completed, task.total) for task in progress.tasks] == [(1, 3), (0, None)]
        board.tell("hashing", 1, 1)
        time.sleep(0.1)
        assert len(progress.tasks) == 1
        board.pause()  # for a download
        assert not progress.tasks and not progress.live.is_started
    progress.stop()
    assert "None" not in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_long_download_speaks_up_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(download_progress, "SECONDS_BETWEEN_LINES", 0.02)
    for quiet in (False, True):
        screen = DownloadScreen(quiet)
        for done in (0, 1_000_000, 2_000_000):
            time.sleep(0.05)
            screen.progress("tiny", done, 4_000_000)
        lines = capfd.readouterr().err.splitlines()
        assert lines == [] if quiet else lines[-1] == "vitattack: tiny: 2 of 4 MB, 0 s, about 0 s left"


def test_telling_of_a_step_costs_next_to_nothing() -> None:
    console = Console(file=io.StringIO(), force_terminal=True)
    progress = bar(console, quiet=True)
    with StageBoard(progress, console, quiet=False) as board:
        began = time.process_time()
        for done in range(20_000):
            board.tell("steps", done, 20_001)
        assert (time.process_time() - began) / 20_000 < 100e-6
