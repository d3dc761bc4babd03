"""PNA and SGM: less gradient through attention weights, and through residual branches."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.models.attention.attention_map import AttentionMap
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.blocks.convolutional import blocks_that_add
from vitattack.models.blocks.names import Part
from vitattack.models.blocks.residual import Kind, Removal, Residuals, attention_functions, followed
from vitattack.models.gradient_views.changed import Change, Forward, Images
from vitattack.models.gradient_views.weights_tap import ScoresTap, found_layers, required_layers
from vitattack.models.victim import Victim


@dataclass(frozen=True)
class PayNoAttention(Change):
    """Attention weights pass a share of their gradient on to the scores, none by default; values pass all of theirs."""

    share: float = 0.0
    layers: AttentionMap | None = field(default=None, compare=False, repr=False)
    attention = True

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise UsageError("pna passes a share of the gradient from 0 to below 1")

    def prepared(self, victim: Victim, images: Images) -> PayNoAttention:
        return replace(self, layers=required_layers(victim, "pna"))

    def forward(self, victim: Victim, forward: Forward, x: Tensor) -> Tensor:
        with ScoresTap(found_layers(self.layers), self.share):
            return forward(x)


class _Decayed(Residuals):
    """Multiplies the gradient of residual branches."""

    def __init__(self, attention: set[str], decay: float, part: Part) -> None:
        super().__init__(attention=attention)
        self.decay, self.part = decay, part

    def branch(self, place: Removal, kind: Kind, branch: Tensor) -> None:
        if branch.requires_grad and self.part in ("block", kind):
            branch.register_hook(lambda grad: grad * self.decay)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class SkipGradient(Change):
    """The gradient of every residual branch is multiplied by a factor, so that more of it comes along the skips."""

    decay: float = 0.5
    part: Part = "block"
    blocks: tuple[str, ...] = field(default=(), compare=False, repr=False)
    functions: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.decay <= 1:
            raise UsageError("sgm multiplies gradients by a factor from 0 to 1")

    def prepared(self, victim: Victim, images: Images) -> SkipGradient:
        """Find the blocks around attention, or those that add in a model without attention."""
        layers = attention_layers(victim, victim.grey())
        blocks = blocks_that_add(victim, layers)
        if not blocks:
            raise UsageError(f"model '{victim.name}' has no residual blocks, so there are no branches for sgm to decay")
        return replace(
            self, blocks=tuple(block.name for block in blocks), functions=frozenset(attention_functions(layers))
        )

    def forward(self, victim: Victim, forward: Forward, x: Tensor) -> Tensor:
        if not self.blocks:
            raise UsageError("the blocks of the model have not been looked for: call prepare(victim, ...) first")
        with followed(victim, self.blocks, _Decayed(set(self.functions), self.decay, self.part)):
            return forward(x)
