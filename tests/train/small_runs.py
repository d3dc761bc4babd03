"""Small runs for tests: a random transformer on 112 embedded images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitattack.models.victim import Victim
from vitattack.train.hooks.base import RunState
from vitattack.train.loop.reporter import Reporter, Row
from vitattack.train.recipe import Recipe
from vitattack.train.run_folder import TrainedRun
from vitattack.train.run_recipe import train
from vitattack.train.session_options import SessionOptions

SHAPE = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
# drop_path draws from torch's own generator, crop and flip from the batch's
SMALL: dict[str, Any] = {
    "name": "small",
    "arch": "vit_tiny_patch16_224",
    "arch_kwargs": {**SHAPE, "drop_path_rate": 0.2},
    "data": "cifar10-calib",
    "validation": 16,
    "augment": ("crop", "flip"),
    "objective": "fgsm",
    "hooks": ("grad_clip(1)", "awp", "ema(0.9)", "eps_warmup(2)"),
    "optimiser": "adamw",
    "epochs": 2,
    "batch_size": 8,
    "probe": 8,
}
STEPS = 14  # per epoch


def small(**changes: Any) -> Recipe:
    return Recipe(**{**SMALL, **changes})


def run(recipe: Recipe, out: Path, reporter: Reporter | None = None, **options: Any) -> TrainedRun:
    return train(recipe, out=out, device="cpu", threads=1, options=SessionOptions(**options), reporter=reporter)


class Affine(nn.Module):
    """z = W x + b on one pixel: small enough to differentiate by hand."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight.T + self.bias


def affine(seed: int = 0) -> Victim:
    generator = torch.Generator().manual_seed(seed)
    weight, bias = torch.randn(4, 3, generator=generator), torch.randn(4, generator=generator)
    return Victim(Affine(weight, bias), name="affine", num_classes=4, input_size=1)


def run_state(victim: Victim, lr: float = 0.1, **changes: Any) -> RunState:
    settings: dict[str, Any] = {"eps": 0.1, "seed": 0, "epochs": 10, "steps": 4, **changes}
    return RunState(victim=victim, plain=victim, optimiser=torch.optim.SGD(victim.parameters(), lr=lr), **settings)


class Killed(BaseException):
    pass


class KillAt(Reporter):
    def __init__(self, step: int) -> None:
        self.at = step

    def step(self, row: Row) -> None:
        if row["step"] == self.at:
            raise Killed


class Hearing(Reporter):
    def __init__(self) -> None:
        self.warned: list[str] = []

    def warn(self, text: str) -> None:
        self.warned.append(text)


def run_fresh(recipe: Recipe, out: Path) -> TrainedRun:
    return train(recipe, out=out, device="cpu", threads=1, fresh=True)
