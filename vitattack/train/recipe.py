"""A recipe: everything that decides what comes out of a training run, as one value with a YAML form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Recipe:
    """Texts and numbers only. Parts are named as attacks are: `trades(beta=6)`, `adamw(lr=1e-3)`, `ema(0.998)`.

    `published` lists what the paper reports, `cost` says what a run takes; both are for people.
    """

    name: str
    summary: str
    paper: str = ""
    published: tuple[Mapping[str, Any], ...] = ()
    cost: str = ""

    arch: str = "small:tiny_vit_32"
    arch_kwargs: Mapping[str, Any] = field(default_factory=dict)
    normalize: str = "cifar10"
    init: str | None = None  # a zoo id, timm:ARCH.TAG, or a file; a classifier of other classes starts anew
    init_adapter: tuple[str, ...] = ()  # such as vit-patch, for other patch and image sizes

    data: str = "cifar10-train"
    validation: int = 1000  # rows held out of `data`, drawn with the seed
    synthetic: str | None = None  # a data text, such as npz:PATH: the second stream
    share: float = 0.0  # of it in every batch: int(batch_size * share) rows
    augment: tuple[str, ...] = ()

    threat: str = "linf:8/255"
    objective: str = "standard"
    hooks: tuple[str, ...] = ()

    optimiser: str = "adamw"
    rate: str = "constant"
    epochs: int = 10
    batch_size: int = 128
    accumulate: int = 1  # pieces a batch is cut into: equal results, less memory
    precision: Literal["fp32", "bf16"] = "fp32"
    seed: int = 0
    export: Literal["fp32", "fp16"] = "fp32"
    probe: int = 256  # of the held-out images are attacked after every epoch
