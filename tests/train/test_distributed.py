"""Processes of one launch join each other, on any device."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from vitattack.core.errors import UsageError
from vitattack.train.distributed import join_processes

accelerate = pytest.importorskip("accelerate", reason="training needs accelerate (pip install 'vitattack[train]')")


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_a_process_of_torchrun_joins_the_others_with_or_without_a_gpu(device: str) -> None:
    told = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    env = {**os.environ, **told, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "OMP_NUM_THREADS": "1"}
    words = f"from vitattack.train.distributed import join_processes; print(join_processes('{device}').state.distributed_type)"
    ended = subprocess.run([sys.executable, "-c", words], env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "DistributedType.MULTI" in ended.stdout  # otherwise it would train alone, as each of the others


def test_processes_that_cannot_find_each_other_do_not_train_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = SimpleNamespace(num_processes=1, process_index=0, device=torch.device("mps"))
    monkeypatch.setattr(accelerate, "PartialState", lambda cpu: alone)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="2 processes were started, and on mps they cannot communicate"):
        join_processes()
