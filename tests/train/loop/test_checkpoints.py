"""Checkpoints on a full disk, spoilt, of another model, or with code inside."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from tests.train.small_runs import Hearing, KillAt, Killed, run, run_fresh, small
from vitattack.core.errors import UsageError, VitattackError
from vitattack.train.loop.checkpoints import Checkpoints
from vitattack.train.run_folder import TrainedRun


def test_a_disk_that_fills_up_leaves_the_previous_checkpoint(
    whole: TrainedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync
    calls = 0

    def full(descriptor: int) -> None:
        nonlocal calls
        if "checkpoints" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            calls += 1
            if calls == 5:  # a file and its folder each: the third checkpoint
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(VitattackError, match="No space left.*still there: free some space and run the same command"):
        run(small(), tmp_path, save_every=4, log_every=1)
    monkeypatch.undo()
    (folder,) = tmp_path.iterdir()
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == ["step-000000004.pt", "step-000000008.pt"]
    assert run(small(), tmp_path, save_every=4, log_every=1).last.read_bytes() == whole.last.read_bytes()


def test_a_spoilt_checkpoint_is_passed_over(whole: TrainedRun, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        run(small(), tmp_path, KillAt(11), save_every=4, log_every=1)
    (folder,) = tmp_path.iterdir()
    newest = Checkpoints(folder / "checkpoints").paths()[-1]
    newest.write_bytes(newest.read_bytes()[:1000])
    hearing = Hearing()
    assert run(small(), tmp_path, hearing, log_every=1).last.read_bytes() == whole.last.read_bytes()
    assert hearing.warned == [f"{newest} cannot be read: resuming from step-000000004.pt instead"]


def test_one_checkpoint_is_kept_beside_a_spoilt_one_that_claims_to_be_newer(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep=1)
    (tmp_path / "step-000000016.pt").write_bytes(b"spoilt")
    (tmp_path / ".step-000000016.pt.tmp").write_bytes(b"left by a kill")
    for step in (12, 13):
        store.save(step, {"step": step})
    found = store.newest()
    assert found is not None and found[1]["step"] == 13
    assert {path.name for path in tmp_path.iterdir()} == {"step-000000013.pt", "step-000000016.pt"}
    many = Checkpoints(tmp_path, keep=4)
    for step in (14, 15, 17):
        many.save(step, {})
    assert [path.name[-5:-3] for path in store.paths()] == ["14", "15", "16", "17"]


@pytest.mark.parametrize("change", ["missing", "shape", "kind"])
def test_a_checkpoint_of_another_model_under_this_name_is_said_in_one_line(tmp_path: Path, change: str) -> None:
    recipe = small(epochs=1, hooks=(), validation=0)
    with pytest.raises(Killed):
        run(recipe, tmp_path, KillAt(5), save_every=4, log_every=1)
    (folder,) = tmp_path.iterdir()
    (path,) = Checkpoints(folder / "checkpoints").paths()
    content = torch.load(path, weights_only=True)
    if change == "missing":
        del content["watch"]
    elif change == "shape":
        content["loop"]["victim"]["model.head.weight"] = torch.zeros(3, 3)
    else:
        content["loop"] = "nonsense"
    torch.save(content, path)
    with pytest.raises(UsageError, match=r"does not fit the recipe \(.*start over with --fresh"):
        run(recipe, tmp_path)
    assert run_fresh(recipe, tmp_path).last.is_file()


def test_checkpoints_with_code_in_them_are_not_run(tmp_path: Path) -> None:
    import pickle

    (tmp_path / "step-000000001.pt").write_bytes(pickle.dumps(run))
    with pytest.raises(UsageError, match="none of the checkpoints"):
        Checkpoints(tmp_path).newest()
