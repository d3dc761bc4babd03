"""The WideResNet with SiLU of Gowal et al. (2020) and Wang et al. (2023): the CNN that robust ViTs are compared with.

Modules are named as in the checkpoints, so that states load without renaming.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """Two convolutions after batch norm and SiLU; where the width changes, the shortcut starts after the first SiLU."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.batchnorm_0 = nn.BatchNorm2d(width_in)
        self.conv_0 = nn.Conv2d(width_in, width, 3, stride, bias=False)
        self.batchnorm_1 = nn.BatchNorm2d(width)
        self.conv_1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(width_in, width, 1, stride, bias=False) if width_in != width else None

    def forward(self, x: Tensor) -> Tensor:
        active = F.silu(self.batchnorm_0(x))
        # Padding as in TensorFlow: a stride of 2 pads on the right and below only.
        padded = F.pad(active, (1, 1, 1, 1) if self.stride == 1 else (0, 1, 0, 1))
        out: Tensor = self.conv_1(F.silu(self.batchnorm_1(self.conv_0(padded))))
        return out + (x if self.shortcut is None else self.shortcut(active))


class Stage(nn.Module):
    """Blocks of one width, the first of which may halve the resolution."""

    def __init__(self, blocks: int, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.block = nn.Sequential(*(Block(width if n else width_in, width, 1 if n else stride) for n in range(blocks)))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.block(x)
        return out


class WideResNet(nn.Module):
    """The WideResNet WRN-depth-width for 32 px images."""

    def __init__(self, depth: int, width: int, num_classes: int = 10) -> None:
        super().__init__()
        self.num_classes = num_classes
        widths = [16, 16 * width, 32 * width, 64 * width]
        blocks = (depth - 4) // 6
        self.init_conv = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        self.layer = nn.Sequential(
            *(Stage(blocks, widths[n], widths[n + 1], 2 if n else 1) for n in range(3)),
        )
        self.batchnorm = nn.BatchNorm2d(widths[3])
        self.logits = nn.Linear(widths[3], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        features = F.silu(self.batchnorm(self.layer(self.init_conv(x))))
        out: Tensor = self.logits(torch.mean(features, dim=(2, 3)))
        return out
