"""A recipe: everything that decides the outcome of a training run, as one frozen value of texts and numbers."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from vitattack.core.errors import UsageError
from vitattack.core.words import printable
from vitattack.text.validate import check_seed

# Keys for readers only; the outcome of a run does not depend on them.
DESCRIPTIVE_KEYS = ("name", "summary", "paper", "published", "cost")


@dataclass(frozen=True)
class Recipe:
    """Texts and numbers only. Parts are written like attacks: `trades(beta=6)`, `adamw(lr=1e-3)`, `ema(0.998)`.

    `published` lists the results the paper reports, `cost` describes the price of a run; both are for readers.
    """

    name: str
    summary: str = ""
    paper: str = ""
    published: tuple[Mapping[str, Any], ...] = ()
    cost: str = ""

    arch: str = "small:tiny_vit_32"
    arch_kwargs: Mapping[str, Any] = field(default_factory=dict)
    normalize: str = "cifar10"
    init: str | None = None  # a zoo id, timm:ARCH.TAG or a file; a classifier with other classes is re-initialised
    init_adapter: tuple[str, ...] = ()  # such as vit-patch, for other patch and image sizes

    data: str = "cifar10-train"
    validation: int = 1000  # rows of `data` held out of training, drawn with the seed
    synthetic: str | None = None  # the data text of generated images, such as npz:PATH
    share: float = 0.0  # of generated images in every batch: int(batch_size * share) rows
    augment: tuple[str, ...] = ()

    threat: str = "linf:8/255"
    objective: str = "standard"
    hooks: tuple[str, ...] = ()

    optimiser: str = "adamw"
    rate: str = "constant"
    epochs: int = 10  # 0 exports the initial weights
    batch_size: int = 128
    accumulate: int = 1  # pieces per batch, to save memory; batch norm and mixup see one piece at a time
    precision: Literal["fp32", "bf16"] = "fp32"
    seed: int = 0
    export: Literal["fp32", "fp16"] = "fp32"
    probe: int = 256  # held-out images attacked after every epoch

    def __post_init__(self) -> None:
        minima = (
            ("epochs", self.epochs, 0),
            ("batch_size", self.batch_size, 1),
            ("accumulate", self.accumulate, 1),
            ("validation", self.validation, 0),
            ("probe", self.probe, 0),
        )
        for key, value, least in minima:
            if value < least:
                raise UsageError(f"recipe '{self.name}': {key} is at least {least}, not {value}")
        check_seed(self.seed, f"recipe '{self.name}': ")
        if not 0 <= self.share < 1:
            raise UsageError(f"recipe '{self.name}': share is from 0 to below 1, not {self.share:g}")
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,79}", self.name):
            raise UsageError(
                f"recipe name '{printable(self.name)}' cannot name a folder: use letters, digits and - _ ."
            )

    def json(self) -> dict[str, Any]:
        return json.loads(json.dumps(asdict(self)))  # type: ignore[no-any-return]

    @property
    def key(self) -> str:
        """Digest of everything but the descriptive keys; equal for equal canonical recipes, whatever their names."""
        content = {k: v for k, v in self.json().items() if k not in DESCRIPTIVE_KEYS}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
