"""`Smoothed`: the victim with gradients averaged over Gaussian noise, for surfaces too rough for one gradient to mean much."""

from __future__ import annotations

import torch
from torch import Tensor

from vitattack.models.victim import Victim, View


class Smoothed(View):
    """The mean logits of noisy copies of each image; the plain victim judges the image itself."""

    def __init__(self, victim: Victim, width: float, answers: int, seed: int = 0) -> None:
        super().__init__(victim)
        self.width, self.answers = width, answers
        self._noise = torch.Generator().manual_seed(seed)

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = torch.zeros(())
        for _ in range(self.answers):
            noise = torch.randn(x.shape[1:], generator=self._noise).to(x)
            total = total + self.victim(x + self.width * noise)
        return total / self.answers
