"""A task of 100 classes made of CIFAR-10: the middle halves of two images side by side; the label is the pair of theirs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from vitattack.data import load_data


def write_pairs(text: str, count: int, seed: int, path: Path, data_dir: Path | None = None) -> Path:
    """Write `count` pairs of the images of a data set, drawn with the seed, as an npz file; an existing one is kept."""
    if path.exists():
        return path
    images = load_data(text, data_dir=data_dir)
    x, y = images.read(images.rows)
    left, right = torch.randint(len(y), (2, count), generator=torch.Generator().manual_seed(seed))
    middle = x[..., 8:24]
    pixels = torch.cat([middle[left], middle[right]], dim=-1).permute(0, 2, 3, 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, image=(pixels * 255).round().to(torch.uint8).numpy(), label=(10 * y[left] + y[right]).numpy())
    return path
