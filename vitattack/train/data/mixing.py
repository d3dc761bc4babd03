"""What timm has for standard training and the control recipe takes: MixUp with CutMix, and RandAugment."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from timm.data.auto_augment import rand_augment_transform
from timm.data.mixup import Mixup as TimmMixup
from torch import Tensor
from torchvision.transforms.functional import pil_to_tensor, to_pil_image

from vitattack.attacks.foreign.sandbox import seed_of, seeded
from vitattack.core.errors import UsageError
from vitattack.train.data.batch import BatchRng, as_float


@dataclass(frozen=True)
class MixUp:
    """A share of the batches is blended with its own reverse by MixUp or CutMix; labels become shares of `classes`.

    Zhang et al., ICLR 2018; Yun et al., ICCV 2019. Each process mixes its own part of a batch.
    """

    classes: int = 10
    mixup: float = 0.8
    cutmix: float = 1.0
    share: float = 1.0
    switch: float = 0.5  # how often CutMix where both are on

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise UsageError(f"mixup(classes={self.classes}): give the number of classes of the data")
        if min(self.mixup, self.cutmix) < 0 or self.mixup == self.cutmix == 0:
            raise UsageError("mixup needs a positive mixup or cutmix, as in mixup(mixup=0.8, cutmix=1.0)")
        if not (0 <= self.share <= 1 and 0 <= self.switch <= 1):
            raise UsageError("share and switch of mixup are shares of the batches: use numbers from 0 to 1")

    def __call__(self, x: Tensor, y: Tensor, rng: BatchRng) -> tuple[Tensor, Tensor]:
        if y.dim() != 1:
            raise UsageError("mixup finds labels mixed already: use it once")
        if len(x) % 2:
            raise UsageError(f"mixup pairs images and was given {len(x)}: use an even batch size")
        if int(y.max()) >= self.classes:
            raise UsageError(f"mixup(classes={self.classes}) was given class {int(y.max())}: correct it")
        mix = TimmMixup(  # type: ignore[no-untyped-call]
            self.mixup,
            self.cutmix,
            prob=self.share,
            switch_prob=self.switch,
            label_smoothing=0,
            num_classes=self.classes,
        )
        # One draw for all processes: the seed must not depend on which rows are here.
        with seeded(replace(rng.child("mixup"), index=())):
            mixed, target = mix(as_float(x).clone(), y)
        return mixed, target.float()


@dataclass(frozen=True)
class RandAugment:
    """timm's RandAugment, image by image on the CPU: slow, and only there to compare with (Cubuk et al., 2020)."""

    config: str = "rand-m9-mstd0.5-inc1"

    def __post_init__(self) -> None:
        try:
            rand_augment_transform(self.config, {})
        except (AssertionError, ValueError, IndexError) as error:
            raise UsageError(
                f"randaugment does not understand '{self.config}': write it as timm does, rand-m9-mstd0.5-inc1"
            ) from error

    def __call__(self, x: Tensor, y: Tensor, rng: BatchRng) -> tuple[Tensor, Tensor]:
        if x.shape[1] != 3:
            raise UsageError(f"randaugment is for colour images, these have {x.shape[1]} channels: drop it")
        bytes_ = x if x.dtype == torch.uint8 else (x * 255).round().to(torch.uint8)
        change = rand_augment_transform(self.config, {"translate_const": x.shape[-1] // 2, "img_mean": (124, 116, 104)})
        for op in change.ops:
            if op.name.startswith("Posterize"):
                op.aug_fn = partial(_posterised, op.aug_fn)
        rng = rng.child("randaugment")
        images = []
        with seeded(rng):
            for place, image in zip(rng.index, bytes_.cpu(), strict=True):
                seed = seed_of(replace(rng, index=(place,)))  # an image's own, whichever process has it
                random.seed(seed)
                np.random.seed(seed)
                images.append(pil_to_tensor(change(to_pil_image(image))))
        return torch.stack(images).to(x.device), y


def _posterised(op: Callable[..., Image.Image], image: Image.Image, bits: int, **options: Any) -> Image.Image:
    """timm's strongest level keeps no bit, which newer versions of Pillow refuse and older ones took for black."""
    return op(image, bits, **options) if bits > 0 else Image.new(image.mode, image.size)
