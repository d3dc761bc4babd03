"""Small models, images and files that the commands under test work on, and the commands themselves."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from tests.conftest import tiny_vit, toy_pictures

SHAPE = '{"embed_dim": 32, "depth": 2, "num_heads": 2}'
MODEL = ("--arch", "small:tiny_vit_32", "--arch-kwargs", SHAPE, "--normalize", "none")
COMMON = ("--threads", "1", "--batch-size", "4", "--threat", "linf:0.5/255", "--json", "--quiet")
DATA = ("--data", "npz:../images.npz")
CALIBRATION = ("--calibration", "npz:../calibration.npz")
PULLED = "/own.safetensors"


@dataclass(frozen=True)
class Case:
    """A command that ends in a JSON object; several commands where all of them make one result together."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    patches: Mapping[str, Any] = field(default_factory=dict)
    forked: bool = True  # else every command is an interpreter of its own
    needs: str | None = None  # a package, or "host": a web server with the weights
    inputs: str | None = None  # pattern of files that are read as input: after damage, other numbers may be right
    own: tuple[str, ...] = ()  # files of the workshop that each trial has a copy of


def _eval(*words: str, model: str = "../model.safetensors") -> tuple[str, ...]:
    return ("eval", model, *words, *(MODEL if model.startswith("..") else ()), *COMMON)


AAS = "aas(pgd(steps=3), restarts=2, steps=2, batch=4, calibration=8)"
AUTO = "auto(steps=1, k=1, long=1)"
BENCH = ("bench", "../small.yaml", "--json", "--quiet")
TRAIN = ("train", "../recipe.yaml", "--save-every", "3", "--keep", "2", "--threads", "1", "--json", "--quiet")
CASES = {
    case.name: case
    for case in (
        Case("eval", (_eval("fgsm", "pgd(steps=2)", "square(queries=20)", *DATA),)),
        Case("auto", (_eval(AUTO, *DATA),), {"short_auto": "probe"}),
        Case("auto escalated", (_eval(AUTO, *DATA),), {"short_auto": "escalation"}),
        Case("aas", (_eval(AAS, *DATA, *CALIBRATION),)),
        Case("scales", (_eval("aas+pgd(steps=3)", "--scales", "../scales.json", *DATA),)),
        Case(
            "shards",
            tuple(_eval("pgd(steps=3)", AUTO, *DATA, "--shard", f"{k}/3") for k in range(3)),
            {"short_auto": "probe"},
        ),
        Case("zoo", (_eval("pgd(steps=2)", "--limit", "12", model="tiny-vit"),)),
        Case(
            "transfer",
            (("transfer", "tiny-vit", "tiny-vit-standard", "pgd(steps=2, stop=never)", "--limit", "16", *COMMON),),
        ),
        Case("bench", (BENCH,)),
        Case("bench --jobs 2", ((*BENCH, "--jobs", "2", "--shards", "2"),), forked=False),
        Case("bench ray", ((*BENCH, "--executor", "ray", "--jobs", "2"),), forked=False, needs="ray"),
        Case("train", (TRAIN,)),
        Case("pull", (("models", "pull", "own/net", "--json", "--quiet"),), needs="host"),
        Case("pull pinned", (("models", "pull", "own/pinned", "--json", "--quiet"),), needs="host"),
        Case("controls", ((*_eval(AAS, *DATA, *CALIBRATION), "--controls"),)),
        Case(
            "given scales",
            (_eval("aas+pgd(steps=3)", "--scales", "scales.json", *DATA),),
            inputs=r"/scales\.json$",
            own=("scales.json",),
        ),
        Case("plan", ((*BENCH, "--plan", "--calibrate"), (*BENCH, "--plan")), inputs=r"/throughput\.json$"),
        Case("zoo file", (("models", "info", "own/net", "--json"),), inputs=r"/models\.yaml$", needs="host"),
    )
}

BENCHMARK = """\
schema: 1
title: Two models
data: "cifar10-demo[:12]"
defaults: {batch_size: 4, threads: 1}
threats: ["linf:8/255"]
models: [tiny-vit, tiny-cnn-standard]
attacks: [fgsm, "pgd(steps=2)"]
"""
RECIPE = """\
schema: 1
name: small
arch: vit_tiny_patch16_224
arch_kwargs: {img_size: 32, patch_size: 8, embed_dim: 16, depth: 2, num_heads: 2, drop_path_rate: 0.2}
data: cifar10-calib
validation: 16
augment: [crop, flip]
objective: fgsm
hooks: [grad_clip(1), awp, ema(0.9), eps_warmup(2)]
optimiser: adamw
epochs: 2
batch_size: 8
probe: 8
"""
ENTRY = """\
schema: 1
models:
  - {{id: own/net, summary: mine, arch: 'small:tiny_vit_32', num_classes: 10, input: 32, dataset: cifar10,
     arch_kwargs: {{embed_dim: 32, depth: 2, num_heads: 2}}, normalize: null,
     weights: {{from: ['{url}/own.safetensors'], size: {size}, sha256: {sha256}}}}}
  - {{id: own/pinned, summary: mine, arch: 'small:tiny_vit_32', num_classes: 10, input: 32, dataset: cifar10,
     arch_kwargs: {{embed_dim: 32, depth: 2, num_heads: 2}}, normalize: null,
     weights: {{from: ['{url}/own.safetensors']}}}}
"""


def _images(path: Path, count: int, seed: int, *, wrong: int | None = None) -> None:
    victim, x = tiny_vit(), (toy_pictures(count, seed=seed) * 255).round() / 255
    with torch.no_grad():
        y = victim(x).argmax(1)
    if wrong is not None:
        y[wrong] = (y[wrong] + 1) % 10
    np.savez(path, image=(x * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy(), label=y.numpy())


@dataclass(frozen=True)
class Workshop:
    """A folder with what all trials read; each trial works in a folder of its own below it."""

    root: Path
    url: str | None = None  # of the host of weights

    def furnish(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        model = tiny_vit().model
        assert isinstance(model, nn.Module)
        save_file(model.state_dict(), self.root / "model.safetensors")
        _images(self.root / "images.npz", 24, 5, wrong=2)
        _images(self.root / "calibration.npz", 16, 7)
        (self.root / "scales.json").write_text("[[0.5, 0.7]]\n")
        (self.root / "small.yaml").write_text(BENCHMARK)
        (self.root / "recipe.yaml").write_text(RECIPE)

    @property
    def weights(self) -> bytes:
        return (self.root / "model.safetensors").read_bytes()

    def place(self, name: str, case: Case | None = None) -> Path:
        """A folder for a trial, with a cache of its own and the case's own files."""
        folder = self.root / name
        if os.path.ismount(folder / "runs"):  # of a campaign that was killed
            subprocess.run(["umount", "-l", str(folder / "runs")], check=True)
        if folder.exists():
            shutil.rmtree(folder)
        (folder / "home").mkdir(parents=True)
        if self.url is not None:
            sha256 = hashlib.sha256(self.weights).hexdigest()
            entry = ENTRY.format(url=self.url, size=len(self.weights), sha256=sha256)
            (folder / "home" / "models.yaml").write_text(entry)
        for file in case.own if case else ():
            shutil.copy2(self.root / file, folder)
        return folder
