"""A model with planted adversarial examples: two classes, and a readout of its features for every image."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitattack.checks.readouts import Readouts
from vitattack.models.head import Head, HeadTap
from vitattack.models.victim import Victim


class PlantedModel(nn.Module):
    """A victim whose head is replaced by a readout per image; class 1 is what the readout of the nearest image plants.

    Attacks drop and reorder images, so that an image is known by the clean one nearest to it.
    """

    images: Tensor
    weight: Tensor
    origin: Tensor
    threshold: Tensor
    scale: Tensor
    offset: Tensor

    def __init__(
        self,
        victim: Victim,
        head: Head | None,
        images: Tensor,
        readouts: Readouts,
        threshold: Tensor,
        scale: Tensor,
        offset: Tensor,
    ) -> None:
        super().__init__()
        self.victim = victim
        self.call = None if head is None else head.call
        self.register_buffer("images", images.flatten(1))
        self.register_buffer("weight", readouts.weight)
        self.register_buffer("origin", readouts.origin)
        for name, values in {"threshold": threshold, "scale": scale, "offset": offset}.items():
            self.register_buffer(name, values)

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.cdist(x.detach().flatten(1).to(self.images.dtype), self.images).argmin(1)

        def read(features: Tensor) -> Tensor:
            score = ((features - self.origin[rows]) * self.weight[rows]).sum(1) + self.threshold[rows]
            score, offset = score * self.scale[rows], self.offset[rows]
            return torch.stack([offset - score, offset + score], 1)

        if self.call is None:
            return read(self.victim(x))
        with HeadTap(self.call, read):
            logits: Tensor = self.victim(x)
        return logits
