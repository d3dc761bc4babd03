"""A data set of noise with labels by turns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vitattack.data.entry import EntryDefaults, OpenedSet


@dataclass(frozen=True)
class NoiseDemo(EntryDefaults):
    summary: str = "32 images of noise with labels by turns"
    rows: int = 32
    num_classes: int = 10
    origin: str = "shipped with vitattack-example"

    def open(self, data_dir: Path | None, part: str = "", transform: str = "none") -> OpenedSet:
        import torch

        from vitattack.data.formats.row_sources import TensorSource

        x = torch.rand(self.rows, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        return OpenedSet(TensorSource(x, torch.arange(self.rows) % self.num_classes, self.num_classes))


NOISE_DEMO = NoiseDemo()
