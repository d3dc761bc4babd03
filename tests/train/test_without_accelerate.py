"""A single process trains without Accelerate; several say in one line how to install it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vitattack.core.errors import UsageError
from vitattack.train.distributed import SINGLE_PROCESS, WORLD_SIZE_VARIABLES, join_processes

ROOT = Path(__file__).resolve().parents[2]
BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("accelerate", "tensorboard"):
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
sys.meta_path.insert(0, Blocked())
from vitattack.cli.main import main
sys.argv = ["vitattack", "train", *sys.argv[1:]]
main()
"""
TWO_STEPS = [
    "pgd-at-tiny",
    "data=cifar10-calib",
    "arch_kwargs={embed_dim: 16, depth: 1, num_heads: 2}",
    "validation=16",
    "batch_size=56",  # 112 rows left for training: two steps
    "epochs=1",
    "probe=4",
]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in WORLD_SIZE_VARIABLES:
        monkeypatch.delenv(variable, raising=False)


def test_a_single_process_trains_without_it(tmp_path: Path, alone: None) -> None:
    command = [sys.executable, "-c", BLOCKED, *TWO_STEPS, "--device", "cpu", "--threads", "1", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.iterdir()
    steps = (folder / "steps.jsonl").read_text().splitlines()
    assert '"step": 2' in steps[-1] and (folder / "last.safetensors").is_file()


def test_a_single_process_under_a_launcher_can_do_without(monkeypatch: pytest.MonkeyPatch, alone: None) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert join_processes("cpu") == SINGLE_PROCESS


@pytest.mark.parametrize("variable", WORLD_SIZE_VARIABLES)
def test_several_processes_name_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch, alone: None, variable: str
) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    monkeypatch.setenv(variable, "2")
    with pytest.raises(UsageError, match=r"^training in several processes needs accelerate: pip install") as error:
        join_processes("cpu")
    assert "'vitattack[train]'" in str(error.value) and "\n" not in str(error.value)
