"""Masks of the objects in images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitattack.analyses.inside.probing import Probed
from vitattack.core.errors import UsageError
from vitattack.core.file_hashes import remembered_sha256
from vitattack.data.formats.arrays import npy


class Masks:
    """Masks of objects by row of the data set, from a file of (N, height, width)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise UsageError(f"masks '{path}' do not exist: give FILE.npy of (N, height, width), or drop masks=")
        self._values = npy(path)

    def check(self, probed: Probed) -> None:
        """Refuse masks that are not those of the images."""
        shape = tuple(self._values.shape)
        images = probed.prepared.images
        wanted = (max(images.rows) + 1, *probed.prepared.victim.size)
        if len(shape) != 3 or shape[0] < wanted[0] or shape[1:] != wanted[1:]:
            raise UsageError(
                f"masks '{self.path}' are {' x '.join(map(str, shape))}, and rows up to {wanted[0] - 1} of '{images.text}' at "
                f"{wanted[1]} x {wanted[2]} px need one each: give such masks, or drop masks="
            )

    @property
    def digest(self) -> str:
        """What tells two mask files of one name apart."""
        return remembered_sha256(self.path)

    def of(self, rows: Sequence[int]) -> Tensor:
        return torch.from_numpy(np.stack([self._values[row] != 0 for row in rows]))
