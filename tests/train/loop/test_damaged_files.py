"""Files of a run that were damaged: the run recovers with a word about it, or ends in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.small_runs import Hearing, KillAt, Killed, run, run_fresh, small
from vitattack.core.errors import UsageError, VitattackError
from vitattack.report.train import run_table
from vitattack.train.loop.checkpoints import Checkpoints
from vitattack.train.loop.logs import read_rows
from vitattack.train.loop.reporter import Row
from vitattack.train.run_folder import TrainedRun

DAMAGES = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "bad utf-8": lambda content: b"\xff\xfe{" + content,
    "deep": lambda content: b"[" * 200_000,
    "deep object": lambda content: b'{"a":' * 100_000,
    "list": lambda content: b"[1, 2]\n",
    "texts": lambda content: b'{"schema": 1, "step": "one", "loss": [], "recipe": 7, "weights": "none"}\n',
    "numbers": lambda content: b'{"schema": 1, "step": 1e999, "loss": true}\n',
}
RECIPE = small(hooks=(), objective="standard", validation=8, probe=0)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    return run(RECIPE, tmp_path_factory.mktemp("finished"), log_every=1)


@pytest.mark.parametrize("name", ["result.json", "epochs.jsonl", "steps.jsonl", "epochs.csv", "last.safetensors"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_finished_run_is_shown_again_whatever_became_of_its_files(
    finished: TrainedRun, tmp_path: Path, name: str, damage: str
) -> None:
    folder = tmp_path / finished.folder.name
    shutil.copytree(finished.folder, folder)
    path = folder / name
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    hearing = Hearing()
    again = run(RECIPE, tmp_path, hearing, log_every=1)
    assert run_table(again)[0].rows == run_table(finished)[0].rows
    assert again.last.read_bytes() == finished.last.read_bytes()
    assert again.best.read_bytes() == finished.best.read_bytes()
    if name in ("result.json", "last.safetensors"):
        assert any("damaged: writing them again" in text for text in hearing.warned)
        passing = {"hours", "provenance"}
        assert {k: v for k, v in again.result.items() if k not in passing} == {
            k: v for k, v in finished.result.items() if k not in passing
        }


OTHER_NUMBERS = {
    "digit": lambda content: content.replace(b'"loss": 2.', b'"loss": 1.', 1),
    "deleted": lambda content: b"",
    "row": lambda content: content.split(b"\n", 1)[1],
}


@pytest.mark.parametrize(
    ("name", "damage"), [("result.json", "digit"), *(("epochs.jsonl", damage) for damage in OTHER_NUMBERS)]
)
def test_another_number_in_a_file_of_a_finished_run_is_shown_nowhere(
    finished: TrainedRun, tmp_path: Path, name: str, damage: str
) -> None:
    folder = tmp_path / finished.folder.name
    shutil.copytree(finished.folder, folder)
    before = (folder / name).read_bytes()
    (folder / name).write_bytes(OTHER_NUMBERS[damage](before))
    assert (folder / name).read_bytes() != before
    again = run(RECIPE, tmp_path, log_every=1)
    assert again.epochs == finished.epochs
    assert (again.result["best"], again.result["last"]) == (finished.result["best"], finished.result["last"])


@pytest.mark.parametrize("damage", OTHER_NUMBERS)
def test_epochs_before_a_checkpoint_outlive_their_log(finished: TrainedRun, tmp_path: Path, damage: str) -> None:
    with pytest.raises(Killed):
        run(RECIPE, tmp_path, KillAt(20), save_every=4, log_every=1)
    (path,) = tmp_path.glob("*/epochs.jsonl")
    path.write_bytes(OTHER_NUMBERS[damage](path.read_bytes()))
    hearing = Hearing()
    again = run(RECIPE, tmp_path, hearing, log_every=1)
    passing = {"seconds"}
    rows = [[{k: v for k, v in row.items() if k not in passing} for row in each.epochs] for each in (again, finished)]
    assert rows[0] == rows[1]
    assert any("those of the checkpoint are back" in text for text in hearing.warned)


@pytest.mark.parametrize("name", ["epochs.jsonl", "steps.jsonl"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_log_does_not_end_a_resume(finished: TrainedRun, tmp_path: Path, name: str, damage: str) -> None:
    with pytest.raises(Killed):
        run(RECIPE, tmp_path, KillAt(20), save_every=4, log_every=1)
    (folder,) = tmp_path.iterdir()
    path = folder / name
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    hearing = Hearing()
    again = run(RECIPE, tmp_path, hearing, log_every=1)
    assert again.last.read_bytes() == finished.last.read_bytes()
    assert all(isinstance(row["step"], int) for row in read_rows(path))
    if damage in ("bad utf-8", "list", "texts", "numbers"):
        assert any(f"{name}.damaged" in text for text in hearing.warned)
        assert path.with_name(f"{name}.damaged").stat().st_size > 0


def _set(where: list[Any], value: Any) -> Any:
    def change(content: dict[str, Any]) -> None:
        for key in where[:-1]:
            content = content[key]
        content[where[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        _set(["loop", "position"], ["a", 0, 0]),
        _set(["loop", "position"], [10**9, 0, 0]),
        _set(["loop", "position"], [0, -5, 0]),
        _set(["loop", "tally"], {}),
        _set(["loop", "tally"], {"loss": "x", "steps": 1, "seconds": 1}),
        _set(["loop", "numbers"], ["a"]),
        _set(["best"], "good"),
        _set(["best"], {"step": 14, "epoch": 1}),
        _set(["watch"], {"clean": "a", "robust": None}),
        _set(["seconds"], "long"),
        _set(["loop", "optimiser"], 3),
    ],
)
def test_a_checkpoint_of_wrong_content_is_said_in_one_line(tmp_path: Path, change: Any) -> None:
    with pytest.raises(Killed):
        run(RECIPE, tmp_path, KillAt(20), save_every=4, log_every=1)
    (folder,) = tmp_path.iterdir()
    path = Checkpoints(folder / "checkpoints").paths()[-1]
    content = torch.load(path, weights_only=True)
    change(content)
    torch.save(content, path)
    with pytest.raises(UsageError, match=r"does not fit the recipe \(.*start over with --fresh") as refused:
        run(RECIPE, tmp_path)
    assert "\n" not in str(refused.value)


def test_files_of_a_newer_version_are_refused(finished: TrainedRun, tmp_path: Path) -> None:
    folder = tmp_path / finished.folder.name
    shutil.copytree(finished.folder, folder)
    (folder / "result.json").write_text(json.dumps({**finished.result, "schema": 99}))
    with pytest.raises(UsageError, match="written by a newer vitattack: update it"):
        run(RECIPE, tmp_path)
    (folder / "result.json").unlink()
    newest = Checkpoints(folder / "checkpoints").paths()[-1]
    torch.save({"format": 99}, newest)
    with pytest.raises(UsageError, match="made by a newer vitattack: update it"):
        run(RECIPE, tmp_path)


def test_best_weights_that_are_gone_cannot_be_made_from_the_last_checkpoint(
    finished: TrainedRun, tmp_path: Path
) -> None:
    folder = tmp_path / finished.folder.name
    shutil.copytree(finished.folder, folder)
    (folder / "best.safetensors").write_bytes(b"nothing")
    with pytest.raises(UsageError, match=r"best.safetensors is missing or damaged .*start over with --fresh"):
        run(RECIPE, tmp_path)


def _flip(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def test_other_weights_of_equal_length_are_not_shown_as_those_of_the_run(finished: TrainedRun, tmp_path: Path) -> None:
    folder = tmp_path / finished.folder.name
    shutil.copytree(finished.folder, folder)
    _flip(folder / "last.safetensors")
    hearing = Hearing()
    assert run(RECIPE, tmp_path, hearing, log_every=1).last.read_bytes() == finished.last.read_bytes()
    assert any("damaged: writing them again" in text for text in hearing.warned)
    _flip(folder / "best.safetensors")
    for _ in range(2):
        with pytest.raises(UsageError, match=r"best.safetensors is missing or damaged .*start over with --fresh"):
            run(RECIPE, tmp_path)


@pytest.mark.parametrize("damage", ["flipped", "deleted"])
def test_best_weights_that_were_changed_meanwhile_do_not_become_the_best(tmp_path: Path, damage: str) -> None:
    recipe = small(
        hooks=(), objective="standard", validation=8, probe=0, optimiser="sgd(lr=1e-30)"
    )  # epoch 1 stays best
    with pytest.raises(Killed):
        run(recipe, tmp_path, KillAt(20), save_every=4, log_every=1)
    (best,) = tmp_path.glob("*/best.safetensors")
    if damage == "flipped":
        _flip(best)
    else:
        best.unlink()
    with pytest.raises(UsageError, match=r"best.safetensors is missing or damaged .*start over with --fresh"):
        run(recipe, tmp_path)
    run_fresh(recipe, tmp_path)


def test_a_kill_between_the_best_weights_and_their_checkpoint_costs_nothing(
    whole: TrainedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = whole.result["best"]["step"]

    def save(self: Checkpoints, step: int, content: dict[str, Any]) -> Path:
        if step == at:
            raise Killed
        return real(self, step, content)

    real = Checkpoints.save
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Checkpoints, "save", save)
        run(small(), tmp_path, save_every=4, log_every=1)
    (best,) = tmp_path.glob("*/best.safetensors")
    assert best.read_bytes() == whole.best.read_bytes()
    assert run(small(), tmp_path, save_every=4, log_every=1).best.read_bytes() == whole.best.read_bytes()


@pytest.mark.parametrize("gone", ["run", "all"])
@pytest.mark.parametrize("at", [9, 20])
def test_a_folder_that_vanishes_is_not_begun_again_in_the_middle(
    whole: TrainedRun, tmp_path: Path, gone: str, at: int
) -> None:
    out = tmp_path / "runs"

    class Vanishing(Hearing):
        def step(self, row: Row) -> None:
            if row["step"] == at:
                (folder,) = out.iterdir()
                (out if gone == "all" else folder).rename(tmp_path / "elsewhere")

    with pytest.raises(VitattackError, match=r"cannot write .* \(No such file or directory\)"):
        run(small(), out, Vanishing(), save_every=4, log_every=1)
    assert not out.exists() or not any(out.iterdir())
    again = run(small(), out, save_every=4, log_every=1)
    assert again.last.read_bytes() == whole.last.read_bytes()
    assert again.best.read_bytes() == whole.best.read_bytes()


def test_a_run_that_another_machine_took_over_writes_nothing_more(tmp_path: Path) -> None:
    class TakenOver(Hearing):
        def step(self, row: Row) -> None:
            if row["step"] == 9:
                (lease,) = tmp_path.glob("*/.lock.lease")
                content = json.loads(lease.read_text().splitlines()[0])
                lease.write_text(json.dumps({**content, "token": "other", "host": "node-b"}) + "\n000000000001\n")

    with pytest.raises(VitattackError, match="was taken over by process .* on node-b"):
        run(small(), tmp_path, TakenOver(), save_every=4, log_every=1)
    assert [path.name for path in tmp_path.glob("*/checkpoints/*")] == ["step-000000004.pt", "step-000000008.pt"]
