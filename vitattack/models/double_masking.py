"""Double masking against patches: a classifier around any other, and what no patch can change of it (PatchCleanser).

A set of square masks covers every place of a patch of one size. If the model gives one class for an image under every pair of
masks, the classifier gives that class for it with any patch of that size at any place (Xiang et al., USENIX Security 2022).
"""

from __future__ import annotations

import math
from itertools import combinations_with_replacement

import torch
from torch import Tensor, nn

from vitattack.core.errors import UsageError
from vitattack.models.victim import Victim, frozen

GREY = 0.5  # of masked pixels


def covering(length: int, side: int, across: int) -> tuple[int, list[int]]:
    """The size of a mask and its first pixels along an axis, so that any run of `side` pixels lies inside one of them."""
    stride = math.ceil((length - side + 1) / across)
    size = min(length, side + stride - 1)
    return size, sorted({min(number * stride, length - size) for number in range(across)})


def masks(height: int, width: int, side: int, across: int) -> Tensor:
    """(M, 1, H, W) True where a mask lies: `across` x `across` of them, fewer where some would be equal."""
    if not (1 <= side <= min(height, width) and across >= 1):
        raise UsageError(
            f"masks against patches of {side} px do not fit images of {width} x {height} px: use a smaller patch"
        )
    (tall, rows), (wide, columns) = covering(height, side, across), covering(width, side, across)
    found = torch.zeros(len(rows) * len(columns), 1, height, width, dtype=torch.bool)
    for number, (top, left) in enumerate((row, column) for row in rows for column in columns):
        found[number, 0, top : top + tall, left : left + wide] = True
    return found


class DoubleMasked(nn.Module):
    """The class that one mask reveals or most masks agree on; its logits are means over the masks that gave that class."""

    covers: Tensor

    def __init__(self, victim: Victim, side: int, across: int) -> None:
        super().__init__()
        self.victim = victim
        self.register_buffer("covers", masks(*victim.size, side, across).to(victim.mean.device))

    def forward(self, x: Tensor) -> Tensor:
        if len(x) == 0:
            logits: Tensor = self.victim(x)
            return logits
        first = torch.stack([self._masked(x, mask) for mask in self.covers])  # (M, B, C)
        given = first.argmax(-1)
        votes = nn.functional.one_hot(given, first.shape[-1]).sum(0)  # (B, C)
        decided = votes.argmax(1)
        agreeing = (given == decided).to(first)[..., None]
        answers = (first * agreeing).sum(0) / agreeing.sum(0)
        open_rows = torch.ones_like(decided, dtype=torch.bool)
        for mask, said in zip(self.covers, given, strict=True):
            rows = (open_rows & (said != decided)).nonzero().flatten()
            if len(rows) == 0:
                continue
            hidden = x[rows].masked_fill(mask, GREY)
            second = torch.stack([self._masked(hidden, other) for other in self.covers])
            agreed = (second.argmax(-1) == said[rows]).all(0)
            rows = rows[agreed]
            answers = answers.index_copy(0, rows, second.mean(0)[agreed])
            open_rows[rows] = False
        return answers

    def _masked(self, x: Tensor, mask: Tensor) -> Tensor:
        logits: Tensor = self.victim(x.masked_fill(mask, GREY))
        return logits

    def certified(self, x: Tensor, y: Tensor) -> Tensor:
        """(B,) whether the model gives the true class under every pair of masks."""
        holds = torch.ones_like(y, dtype=torch.bool)
        with frozen(self.victim), torch.no_grad():
            for one, other in combinations_with_replacement(self.covers, 2):
                rows = holds.nonzero().flatten()
                if len(rows) == 0:
                    break
                holds[rows] = self._masked(x[rows], one | other).argmax(1) == y[rows]
        return holds


def double_masked(victim: Victim, side: int, across: int = 4) -> Victim:
    """The victim behind double masking against patches of `side` pixels, with `across` x `across` masks."""
    return Victim(
        DoubleMasked(victim, side, across),
        name=f"{victim.name} double-masked",
        num_classes=victim.num_classes,
        input_size=victim.size,
        channels=victim.channels,
    ).eval()
