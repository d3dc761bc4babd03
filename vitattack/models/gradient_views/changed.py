"""`Changed`: the victim, attacked through changes of its inputs or of its gradients that are stacked in one view."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.victim import Victim, View

Forward = Callable[[Tensor], Tensor]
# Loads calibration images; called only by changes that learn from them.
Images = Callable[[], Tensor]


@dataclass(frozen=True)
class Followed:
    """What a run says of the candidates of one call: their clean images, their random streams, and calls so far."""

    clean: Tensor
    rng: SampleRng
    calls: int

    def kept(self, keep: Tensor) -> Followed:
        return Followed(self.clean[keep], self.rng[keep], self.calls)

    def draws(self, name: str) -> SampleRng:
        """Streams for one call, one per candidate."""
        return self.rng.child(name, self.calls)


class Change:
    """One change, a frozen value. The defaults leave the victim as it is."""

    copies: int = 1  # forwards per image
    backwards: int = 1  # backwards per gradient
    exact: bool = True  # whether logits are those of the victim, to the bit
    follows: bool = False  # whether it has to know the clean image and the random stream of each candidate
    learns: bool = False  # whether it makes use of calibration images
    attention: bool = False  # whether it replaces the gradient of attention
    comes_first: bool = False  # whether it has to see the candidates as they are, before other changes of the input

    def prepared(self, victim: Victim, images: Images) -> Self:
        """Probe the model, and learn from images where needed."""
        return self

    def learned(self) -> str | None:
        """What was learned from images, as text."""
        return None

    def recalled(self, victim: Victim, content: str | None) -> Self:
        """Rebuild the prepared change from what it learned."""
        return self.prepared(victim, no_images)

    def inputs(self, x: Tensor, run: Followed | None) -> list[Tensor]:
        """What the victim sees in place of the candidates: `copies` batches."""
        return [x]

    def forward(self, victim: Victim, forward: Forward, x: Tensor) -> Tensor:
        """Run the victim under autograd."""
        return forward(x)

    def doubts(self) -> tuple[str, ...]:
        return ()


def no_images() -> Tensor:
    return torch.empty(0)


class Changed(View):
    """The victim behind changes, the first of which is applied first to its input."""

    def __init__(self, victim: Victim, changes: Sequence[Change]) -> None:
        super().__init__(victim)
        self.changes = tuple(sorted(changes, key=lambda change: not change.comes_first))
        self.answers = 1
        for change in self.changes:
            self.answers *= change.copies
        self.exact = all(change.exact for change in self.changes)
        self.verdict_forwards = 0 if self.exact else 1
        self._run: Followed | None = None

    def follow(self, clean: Tensor, rng: SampleRng) -> None:
        self._run = Followed(clean, rng, 0)

    def keep(self, rows: Tensor) -> None:
        if self._run is not None:
            self._run = self._run.kept(rows)

    def forward(self, x: Tensor) -> Tensor:
        images = [x]
        for change in self.changes:
            images = [copy for image in images for copy in self._inputs(change, image)]
        answers = [self._answer(image) for image in images]
        return answers[0] if self.answers == 1 else torch.stack(answers)

    def verdict(self, x: Tensor, logits: Tensor) -> Tensor:
        return logits if self.exact else self.verdict_again(x)

    def _inputs(self, change: Change, image: Tensor) -> list[Tensor]:
        """Inputs of a change; one that follows the run is for gradients alone, and draws anew for each."""
        if not change.follows:
            return change.inputs(image, None)
        if not _differentiates(image):
            return [image] * change.copies
        run = self._run
        if run is None or len(run.clean) != len(image):
            raise UsageError(
                "this view has to know which image every candidate began as, and only pgd, mim, apgd and their kin say so: "
                "put one of them inside"
            )
        self._run = Followed(run.clean, run.rng, run.calls + 1)
        return change.inputs(image, run)

    def _answer(self, image: Tensor) -> Tensor:
        forward: Forward = self.victim
        if _differentiates(image):
            for change in self.changes:
                forward = _through(change, self.victim, forward)
        return forward(image)


def _differentiates(x: Tensor) -> bool:
    return torch.is_grad_enabled() and x.requires_grad


def _through(change: Change, victim: Victim, forward: Forward) -> Forward:
    return lambda x: change.forward(victim, forward, x)
