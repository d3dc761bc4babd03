"""Softmaxes of a probing forward, and the layers that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from vitattack.models.attention.attention_map import AttentionLayer, AttentionMap, ByHand, Place
from vitattack.models.attention.by_hand import Quotients
from vitattack.models.attention.layer_shape import block_of, heads_of

OVER_LAYERS = "it normalises the first axis, over layers or branches and not over positions"
NESTED = "it runs on nested tensors, whose scores have no rows to read"


@dataclass
class SoftmaxCall:
    """One softmax or exponential of the probing forward."""

    stack: list[str]
    shape: tuple[int, ...]
    axis: int
    fused: bool
    kind: str | None
    reason: str = "its output is not multiplied with values over the axis it normalised"
    places: set[Place] = field(default_factory=set)
    gated: int | None = None  # storage of the tensor whose linear map the scores are
    compares: bool = False  # its scores are products of queries and keys
    temperature: Tensor | None = None
    by_hand: bool = False

    def over_layers(self) -> bool:
        """Whether it normalises the first axis: where the batch or a stack of layers is, never positions."""
        return self.axis == 0 and len(self.shape) > 2


@dataclass
class Found:
    """What a probe has found."""

    calls: list[SoftmaxCall]
    quotients: Quotients
    modules: Mapping[str, nn.Module]
    batch: int

    def attention_map(self, model: str, unseen: Sequence[tuple[str, str]]) -> AttentionMap:
        """Describe a layer per softmax, and per group of exponentials that share their sum.

        Exponentials are numbered with the softmaxes only if some of them are attention.
        """
        self._join_exponentials()
        used = any(seen.by_hand and seen.kind for seen in self.calls)
        kept = [at for at, seen in enumerate(self.calls) if used or not seen.by_hand]
        layers: list[AttentionLayer] = []
        ignored: list[tuple[str, str]] = []
        places: set[Place] = set()
        calls: list[int | None] = []
        by_hand: dict[int, ByHand] = {}
        numbers: dict[int, int] = {}  # of layers, by their first call
        for at in kept:
            seen = self.calls[at]
            if seen.kind is None:
                ignored += [] if seen.by_hand else [(seen.stack[-1], seen.reason)]
                calls.append(None)
                continue
            group = sorted(self.quotients.group(at)) if seen.by_hand else [at]
            if group[0] not in numbers:
                numbers[group[0]] = len(layers)
                layers.append(self._layer(self._with_rows(group), len(layers)))
            if seen.by_hand:
                by_hand[len(calls)] = self.quotients.calls[at].by_hand()
            calls.append(numbers[group[0]])
            places |= {(sum(one < call for one in kept), number) for call, number in seen.places}
        hidden = [(name, reason) for name, reason in ignored if reason == NESTED]
        return AttentionMap(
            model, tuple(layers), tuple(ignored), tuple(calls), frozenset(places), by_hand, (*hidden, *unseen)
        )

    def _join_exponentials(self) -> None:
        """Count those that join the sum of a confirmed one, or rescale it, as parts of the same softmax."""
        for at, exponential in self.quotients.calls.items():
            if self.calls[at].kind is None and any(self.calls[other].kind for other in exponential.group):
                self.calls[at].kind, exponential.summed = "softmax", None

    def _with_rows(self, group: Sequence[int]) -> SoftmaxCall:
        """Return the call of a group whose shape is that of the scores."""
        rows = (at for at in group if at not in self.quotients.calls or self.quotients.calls[at].summed is not None)
        return self.calls[next(rows)]

    def _layer(self, call: SoftmaxCall, number: int) -> AttentionLayer:
        name = call.stack[-1]
        heads, head_axis = heads_of(self.modules[name], call.shape, self.batch)
        return AttentionLayer(
            number,
            name,
            block_of(call.stack, self.modules),
            heads,
            head_axis,
            call.fused,
            call.kind or "",
            None if call.temperature is None else tuple(call.temperature.double().tolist()),
        )
