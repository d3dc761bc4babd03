"""Two processes train as one process does with the same batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.train.small_runs import run, small
from tests.train.workers import CASES, PLAIN
from vitattack.train.run_folder import TrainedRun, finished_run

pytest.importorskip("accelerate", reason="training needs accelerate (pip install 'vitattack[train]')")
ROOT = Path(__file__).resolve().parents[2]


def together(case: str, out: Path, *more: str) -> TrainedRun:
    """The case in two processes under torchrun, over gloo."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", *more]
    command += ["-m", "tests.train.workers", case, str(out)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    assert ended.returncode == 0, ended.stderr[-3000:]
    (folder,) = out.iterdir()
    done = finished_run(folder)
    assert done is not None
    return done


def losses(done: TrainedRun) -> torch.Tensor:
    lines = (done.folder / "steps.jsonl").read_text().splitlines()
    return torch.tensor([json.loads(line)["loss"] for line in lines], dtype=torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "steps"), [("standard", 50), ("pgd_at", 2), ("hooks", 2)])
def test_two_processes_have_the_losses_of_one_with_the_same_batch(tmp_path: Path, case: str, steps: int) -> None:
    """Sign attacks amplify the last bit of a sum, hence the two steps."""
    one = run(small(**{**PLAIN, **CASES[case]}), tmp_path / "one", log_every=1)
    two = together(case, tmp_path / "two")
    assert two.result["processes"] == 2 and one.folder.name == two.folder.name
    apart = (losses(one)[:steps] - losses(two)[:steps]).abs()
    assert len(apart) == steps and float(apart.max()) < 1e-5
    assert losses(one)[0] != losses(one)[1]
    if case == "standard":
        a, b = load_file(one.last), load_file(two.last)
        assert all(torch.allclose(a[name], b[name], atol=1e-4) for name in a)
        assert two.epochs[-1]["clean"] == pytest.approx(one.epochs[-1]["clean"], abs=0.13)  # 2 of 16 images


@pytest.mark.slow
def test_a_killed_worker_goes_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    left_alone = together("standard", tmp_path / "alone")
    killed = together("killed", tmp_path / "killed", "--max-restarts", "1")
    assert killed.last.read_bytes() == left_alone.last.read_bytes()
    assert torch.equal(losses(killed), losses(left_alone))
