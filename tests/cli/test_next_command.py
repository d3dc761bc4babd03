"""The command that a doubt names for a checkpoint file runs as it is printed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import torch

from tests.cli.conftest import Here
from tests.conftest import tiny_vit

OPTIONS = ("--arch", "small:tiny_vit_32", "--arch-kwargs", '{"embed_dim": 32, "depth": 2, "num_heads": 2}')


def test_the_next_command_for_a_file_runs(here: Here, tmp_path: Path) -> None:
    path = tmp_path / "my vit.pt"
    model = tiny_vit()
    with torch.no_grad():
        model.model.head.weight *= 1e5  # type: ignore[union-attr, operator]
    torch.save(model.model.state_dict(), path)
    first = here(
        "eval",
        str(path),
        "auto(steps=2, k=2, long=4, passes=60)",
        *OPTIONS,
        "--normalize",
        "none",
        "--limit",
        "12",
        "--json",
    )
    doubts = json.loads(first.stdout)["doubts"]
    (doubt,) = [each for each in doubts if "cross-entropy had a gradient of exactly zero" in each]
    words = shlex.split(doubt.partition("next: ")[2])
    assert words[:2] == ["vitattack", "diagnose-softmax"] and "--arch" in words
    assert here(*words[1:], "--limit", "4", "--json").returncode == 0
