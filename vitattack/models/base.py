"""The contract between models and attacks: logits, and the verdict of the plain model on them."""

from __future__ import annotations

from torch import Tensor, nn

from vitattack.core.rng import SampleRng


class Attackable(nn.Module):
    """A module that attacks drive: the victim, or a view of it. It maps pixels in [0,1] to (B, num_classes) logits.

    The defaults are those of a module that is its own judge: its logits are the verdict, and cost nothing more.
    """

    answers: int = 1  # forwards of the victim that one call spends on each image
    verdict_forwards: int = 0  # forwards that `verdict` spends on each image beyond that call
    name: str = ""  # of the victim; views add to it
    num_classes: int

    @property
    def is_random(self) -> bool:
        """Whether the model that decides is known to answer the same images differently."""
        return False

    @property
    def look(self) -> int:
        """Forwards of one look at an image, its verdict included."""
        return self.answers + self.verdict_forwards

    def verdict(self, x: Tensor, logits: Tensor) -> Tensor:
        """Return the logits that decide at x whether an example fools the model; `logits` are this module's own at x."""
        return logits

    def follow(self, clean: Tensor, rng: SampleRng) -> None:
        """Learn of which images the candidates of the next calls are, and of their random streams."""

    def keep(self, rows: Tensor) -> None:
        """Learn that other candidates than these, a boolean mask, have left."""

    def verdict_again(self, x: Tensor) -> Tensor:
        """Return another answer of the model that decides at x: of a random one, another draw."""
        answer: Tensor = self(x)
        return self.verdict(x, answer)
