"""A data set under one corruption, made as it is read: the same images each time, in any batch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.data.corruptions.kinds import corrupted_image
from vitattack.data.entry import Source

VERSION = 1  # raised when a kind gives other images


class Corrupted:
    """The images of another source, corrupted; their noise depends on their row, the kind and the severity."""

    def __init__(self, inner: Source, kind: str, severity: int) -> None:
        self.inner, self.kind, self.severity = inner, kind, severity
        self.num_classes = inner.num_classes

    def __len__(self) -> int:
        return len(self.inner)

    def read(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        x, y = self.inner.read(rows)
        if x.shape[1] != 3:
            raise UsageError(f"corruptions are of images with three channels, and these have {x.shape[1]}: give others")
        noise = SampleRng(0, tuple(rows)).child(f"{self.kind}/{self.severity}")
        images = [
            corrupted_image(image.permute(1, 2, 0).double().numpy(), self.kind, self.severity, noise.generator(row))
            for image, row in zip(x, rows, strict=True)
        ]
        return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float().contiguous(), y

    def digest(self, rows: Sequence[int]) -> str:
        content = f"{self.inner.digest(rows)}|{self.kind}|{self.severity}|{VERSION}"
        return hashlib.sha256(content.encode()).hexdigest()
