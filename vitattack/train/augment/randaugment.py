"""RandAugment, by timm."""

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
from torch import Tensor
from torchvision.transforms.functional import pil_to_tensor, to_pil_image

from vitattack.core.errors import UsageError
from vitattack.core.rng import seed_of, seeded
from vitattack.train.data.batch import BatchRng


@dataclass(frozen=True)
class RandAugment:
    """RandAugment (Cubuk et al., 2020), image by image on the CPU: slow, for comparison with published recipes only."""

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
                seed = seed_of(replace(rng, index=(place,)))  # the same whichever process has the image
                random.seed(seed)
                np.random.seed(seed)
                images.append(pil_to_tensor(change(to_pil_image(image))))
        return torch.stack(images).to(x.device), y


def _posterised(op: Callable[..., Image.Image], image: Image.Image, bits: int, **options: Any) -> Image.Image:
    """Posterise to 0 bits as black: timm's strongest level asks for it, and newer versions of Pillow refuse it."""
    return op(image, bits, **options) if bits > 0 else Image.new(image.mode, image.size)
