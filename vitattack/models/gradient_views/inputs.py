"""Input transformations of transfer attacks: DI, TI, SI, admix and PatchOut, each image with draws of its own."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from vitattack.core.errors import UsageError
from vitattack.models.gradient_views.changed import Change, Followed, Images, no_images
from vitattack.models.victim import Victim


@dataclass(frozen=True)
class DiverseInputs(Change):
    """With some probability, an image is enlarged at random, padded with black to `rate` times its size, and shrunk back."""

    rate: float = 1.1
    probability: float = 0.5
    exact = False
    follows = True

    def __post_init__(self) -> None:
        if not (1 <= self.rate <= 4 and 0 <= self.probability <= 1):
            raise UsageError("di takes a rate from 1 to 4 and a probability from 0 to 1")

    def inputs(self, x: Tensor, run: Followed | None) -> list[Tensor]:
        assert run is not None
        streams = run.draws("di")
        rows = [self._one(image[None], streams.generator(index)) for image, index in zip(x, streams.index, strict=True)]
        return [torch.cat(rows) if rows else x]

    def _one(self, image: Tensor, draw: np.random.Generator) -> Tensor:
        height, width = image.shape[-2:]
        tall, wide = int(height * self.rate), int(width * self.rate)
        if draw.random() >= self.probability or tall == height or wide == width:
            return image
        rows = int(draw.integers(height, tall))
        columns = rows if height == width else int(draw.integers(width, wide))
        top, left = int(draw.integers(0, tall - rows)), int(draw.integers(0, wide - columns))
        enlarged = F.interpolate(image, size=(rows, columns), mode="bilinear", align_corners=False)
        padded = F.pad(enlarged, (left, wide - columns - left, top, tall - rows - top))
        return F.interpolate(padded, size=(height, width), mode="bilinear", align_corners=False)


class _SmoothBackward(Function):
    """The identity, whose gradient is convolved with a kernel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor) -> Tensor:
        ctx.save_for_backward(kernel)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (kernel,) = ctx.saved_tensors
        (grad,) = grads
        channels = grad.shape[1]
        weight = kernel.to(grad).expand(channels, 1, *kernel.shape)
        return F.conv2d(grad, weight, padding="same", groups=channels), None


@lru_cache(maxsize=8)
def gaussian(size: int, sigmas: float = 3.0) -> Tensor:
    """A square kernel that sums to one and reaches so many standard deviations to each side."""
    at = torch.linspace(-sigmas, sigmas, size, dtype=torch.float64)
    line = (-at.square() / 2).exp()
    kernel = line[:, None] * line
    return kernel / kernel.sum()


@dataclass(frozen=True)
class TranslationInvariant(Change):
    """The gradient of the image is smoothed by a Gaussian, in place of a mean over shifted images."""

    size: int = 15

    def __post_init__(self) -> None:
        if self.size < 1 or self.size % 2 == 0:
            raise UsageError("ti takes a kernel of an odd size, such as 15")

    def inputs(self, x: Tensor, run: Followed | None) -> list[Tensor]:
        smoothed: Tensor = _SmoothBackward.apply(x, gaussian(self.size))
        return [smoothed]


@dataclass(frozen=True)
class ScaleInvariant(Change):
    """The mean loss over copies of an image divided by 1, 2, 4, ..."""

    copies: int = 5
    exact = False

    def __post_init__(self) -> None:
        if not 1 <= self.copies <= 20:
            raise UsageError("si takes 1 to 20 copies")

    def inputs(self, x: Tensor, run: Followed | None) -> list[Tensor]:
        return [x / 2**power for power in range(self.copies)]


POOL = 16  # images that admix chooses from


@dataclass(frozen=True)
class Admixed(Change):
    """The mean loss over an image with a share of other images added, each sum divided by 1, 2, 4, ..."""

    others: int = 3
    strength: float = 0.2
    scales: int = 5
    pool: Tensor | None = field(default=None, compare=False, repr=False)
    exact = False
    follows = True
    learns = True

    def __post_init__(self) -> None:
        if not (1 <= self.others <= 20 and 1 <= self.scales <= 20):
            raise UsageError("admix takes 1 to 20 other images and as many scales")

    @property
    def copies(self) -> int:  # type: ignore[override]
        return self.others * self.scales

    def prepared(self, victim: Victim, images: Images) -> Admixed:
        pool = (images()[:POOL] * 255).round().to(torch.uint8)
        return replace(self, pool=pool)

    def learned(self) -> str | None:
        if self.pool is None or not len(self.pool):
            return None
        shape = "x".join(str(side) for side in self.pool.shape)
        return f"{shape} {base64.b64encode(self.pool.cpu().numpy().tobytes()).decode()}"

    def recalled(self, victim: Victim, content: str | None) -> Admixed:
        if content is None:
            return self.prepared(victim, no_images)
        shape, pixels = content.split(" ")
        raw = np.frombuffer(base64.b64decode(pixels), dtype=np.uint8).copy()
        return replace(self, pool=torch.from_numpy(raw).reshape([int(side) for side in shape.split("x")]))

    def inputs(self, x: Tensor, run: Followed | None) -> list[Tensor]:
        assert run is not None
        mixed = [x + self.strength * other for other in self._others(x.detach(), run)]
        return [image / 2**power for power in range(self.scales) for image in mixed]

    def _others(self, x: Tensor, run: Followed) -> list[Tensor]:
        if self.pool is None or not len(self.pool):
            return [x.flip(-1)] * self.others  # its own mirror image, for want of others
        streams, count = run.draws("admix"), len(self.pool)
        chosen = [
            streams.generator(index).choice(count, self.others, replace=self.others > count) for index in streams.index
        ]
        at = torch.from_numpy(np.stack(chosen)).T
        return [self.pool[rows].to(x) / 255 for rows in at]

    def doubts(self) -> tuple[str, ...]:
        if self.pool is None or len(self.pool):
            return ()
        return ("admix had no other images to add, and added each image's own mirror image: give --calibration DATA",)


class _WithNormGradient(Function):
    """The identity, with the gradient of `weight` times the norm of the change added where a gradient arrives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, clean: Tensor, weight: float) -> Tensor:
        ctx.save_for_backward(x - clean)
        ctx.weight = weight
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (change,), (grad,) = ctx.saved_tensors, grads
        flat = change.flatten(1)
        unit = flat / flat.norm(dim=1, keepdim=True).clamp_min(1e-30)
        active = grad.flatten(1).any(1, keepdim=True)
        return grad + (ctx.weight * unit * active).view_as(grad), None, None


@dataclass(frozen=True)
class PatchOut(Change):
    """In every step only some square patches carry the perturbation, drawn anew; a term in its norm makes it large."""

    share: float = 130 / 196
    side: int | None = None  # in pixels; None: a fourteenth of the image, as 16 of 224
    norm_weight: float = 0.1
    exact = False
    follows = True
    comes_first = True

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1 or (self.side is not None and self.side < 1):
            raise UsageError("patchout takes a share of the patches above 0 and at most 1, and a side of at least 1 px")

    def inputs(self, x: Tensor, run: Followed | None) -> list[Tensor]:
        assert run is not None
        if self.norm_weight:
            x = _WithNormGradient.apply(x, run.clean, self.norm_weight)
        return [run.clean + (x - run.clean) * self.masks(x, run)]

    def masks(self, x: Tensor, run: Followed) -> Tensor:
        """(B, 1, H, W) ones where the perturbation is seen."""
        height, width = x.shape[-2:]
        side = self.side or max(1, round(width / 14))
        rows, columns = -(-height // side), -(-width // side)
        seen = max(1, int(rows * columns * self.share + 1e-9))
        streams = run.draws("patchout")
        masks = torch.zeros(len(x), rows * columns)
        for row, index in enumerate(streams.index):
            masks[row, torch.from_numpy(streams.generator(index).permutation(rows * columns)[:seen])] = 1
        grid = masks.view(-1, 1, rows, columns).to(x)
        return grid.repeat_interleave(side, 2).repeat_interleave(side, 3)[..., :height, :width]
