"""Trace of one forward: every softmax output is labelled and followed to its use."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vitattack.models.attention.attention_map import AttentionLayer, Place
from vitattack.models.attention.layer_shape import block_of, heads_of
from vitattack.models.attention.scores import MAPS, PRODUCTS, VIEWS, Trail, added_mask, viewed
from vitattack.models.attention.tap import SoftmaxMode

MULTIPLICATIONS = {"mul", "__mul__", "__rmul__", "mul_", "__imul__"}
# The logits of a gate are a map of the tensor it weighs, just before the softmax; a few maps back is far enough.
RECENT_MAPS = 8


@dataclass
class SoftmaxCall:
    """One softmax of the probing forward."""

    stack: list[str]
    shape: tuple[int, ...]
    axis: int
    fused: bool
    kind: str | None
    reason: str = "its output is not multiplied with values over the axis it normalised"
    places: set[Place] = field(default_factory=set)
    gated: int | None = None  # storage of the tensor whose linear map the scores are
    temperature: Tensor | None = None


class SoftmaxTrace(SoftmaxMode):
    """Labels every softmax output with positions along its axis and follows the labels to the product with values."""

    def __init__(self, modules: Mapping[str, nn.Module], batch: int) -> None:
        super().__init__()
        self._modules, self._batch = modules, batch
        self._stack: list[str] = []
        self.calls: list[SoftmaxCall] = []
        self.marks: list[Tensor] = []  # per softmax a leaf of autograd's graph that its output depends on
        self._labels: dict[int, tuple[Tensor, dict[int, Tensor]]] = {}
        self._weighed: dict[int, tuple[Tensor, dict[int, Tensor]]] = {}
        self._maps: deque[tuple[Tensor, Tensor]] = deque(maxlen=RECENT_MAPS)
        self._trail = Trail(exact=True)
        self._places: dict[Place, Tensor] = {}
        self._temperatures: dict[int, tuple[Tensor, Tensor]] = {}

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Keep track of the modules that are executing."""
        handles = []
        for name, module in self._modules.items():
            handles.append(module.register_forward_pre_hook(lambda _, __, name=name: self._stack.append(name)))
            handles.append(module.register_forward_hook(lambda _, __, ___: self._leave()))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _leave(self) -> None:
        self._stack.pop()

    def softmax(self, call: int, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        out: Tensor = func(*args, **kwargs)
        self.marks.append(torch.ones((), dtype=out.dtype, device=out.device, requires_grad=out.is_floating_point()))
        out = out * self.marks[-1]
        if name != "softmax":
            q, k = (args[n] if len(args) > n else kwargs[key] for n, key in enumerate(("query", "key")))
            mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
            if q.is_nested:
                reason = "it runs on nested tensors, whose scores have no rows to read"
                seen = SoftmaxCall([*self._stack], (), 0, True, None, reason)
            else:
                seen = SoftmaxCall([*self._stack], (*q.shape[:-1], k.shape[-2]), q.dim() - 1, True, "sdpa")
                self._describe(seen, mask)
        else:
            z = args[0] if args else kwargs["input"]
            axis = args[1] if len(args) > 1 else kwargs.get("dim", -1)
            seen = SoftmaxCall([*self._stack], tuple(z.shape), axis % z.dim(), False, None)
            self._describe(seen, z)
            storage = z.untyped_storage().data_ptr()
            seen.gated = next(
                (x.untyped_storage().data_ptr() for y, x in self._maps if y.untyped_storage().data_ptr() == storage),
                None,
            )
            if z.shape[axis] == 1:
                seen.reason = "it normalises a single entry, so its output is always 1"
            sizes = [1] * z.dim()
            sizes[axis] = z.shape[axis]
            if axis % z.dim() == 0 and z.dim() > 2:  # where the batch or a stack of layers is, never positions
                seen.reason = "it normalises the first axis, over layers or branches and not over positions"
                self.calls.append(seen)
                self._trail.clear()
                self._temperatures.clear()
                return out
            label = torch.arange(z.shape[axis], device=z.device).view(sizes).expand(z.shape)
            self._labels[id(out)] = (out, {call: label})
        self.calls.append(seen)
        self._trail.clear()
        self._temperatures.clear()
        return out

    def _describe(self, seen: SoftmaxCall, scores: Tensor | None) -> None:
        trace = self._trail.of(scores)
        if trace is not None and trace.addition is not None:
            seen.places.add(trace.addition)
        if scores is not None and id(scores) in self._temperatures:
            seen.temperature = self._temperatures[id(scores)][1]

    def other(self, func: Any, name: str, args: Any, kwargs: Any, out: Any, place: Place | None) -> None:
        if isinstance(out, Tensor) and name in MAPS:
            self._maps.append((out, args[0] if args else kwargs["input"]))
        if name in PRODUCTS:
            self._contract(name, args)
        if name == "sum":
            self._sum(args, kwargs)
        if name in MULTIPLICATIONS and isinstance(out, Tensor):
            self._weigh(args, out)
            self._find_temperature(args, out)
        elif isinstance(out, Tensor):
            self._carry_temperature(args, out)
        self._trail.step(func, name, args, kwargs, out)
        if place is not None:
            mask = added_mask(name, args, kwargs, out)
            if mask is not None:
                self._trail.add_mask(out, mask, place)
        self._carry_labels(func, name, args, kwargs, out)

    # Labels: from a softmax to the product that confirms it as attention.

    def _carry_labels(self, func: Any, name: str, args: Sequence[Any], kwargs: Any, out: Any) -> None:
        for at, arg in enumerate(args):
            if id(arg) not in self._labels or name in PRODUCTS:
                continue
            for call, label in self._labels[id(arg)][1].items():
                outs = out if isinstance(out, tuple | list) else (out,)
                if name in VIEWS:
                    moved = viewed(func, name, args, kwargs, at, label)
                    moved = moved if isinstance(moved, tuple | list) else (moved,)
                else:
                    moved = [_broadcast(label, o) if isinstance(o, Tensor) else None for o in outs]
                for tensor, following in zip(outs, moved, strict=True):
                    if isinstance(tensor, Tensor) and following is not None and id(tensor) not in self._weighed:
                        self._labels.setdefault(id(tensor), (tensor, {}))[1][call] = following

    def _contract(self, name: str, args: Sequence[Any]) -> None:
        if name == "einsum":
            equation, operands = args[0], args[1:] if len(args) > 2 else args[1]
            inputs, _, output = equation.replace(" ", "").partition("->")
            terms = inputs.split(",")
            for at, operand in enumerate(operands):
                others = "".join(term for n, term in enumerate(terms) if n != at)
                for axis, letter in enumerate(terms[at]):
                    if letter in others and letter not in output:
                        self._confirm(operand, axis, operands, "softmax")
            return
        operands = args[1:3] if name == "baddbmm" else args[:2]
        left, right = operands if name != "__rmatmul__" else operands[::-1]
        self._confirm(left, -1, (right,), "softmax")
        self._confirm(right, -2 if right.dim() > 1 else -1, (left,), "softmax")

    def _weigh(self, args: Sequence[Any], out: Tensor) -> None:
        for weights, values in (args[:2], args[1::-1]):
            if id(weights) not in self._labels or not isinstance(values, Tensor):
                continue
            for call, label in self._labels[id(weights)][1].items():
                # Positions lie on the last axis; branches, which are not attention, are stacked on a front one.
                if values.dim() and _varies(label, -1) and values.shape[-1] == label.shape[-1]:
                    moved = _broadcast(label, out)
                    if moved is not None and out.shape != weights.shape:
                        self._weighed.setdefault(id(out), (out, {}))[1][call] = moved

    def _sum(self, args: Sequence[Any], kwargs: Any) -> None:
        axis = args[1] if len(args) > 1 else kwargs.get("dim")
        axis = axis[0] if isinstance(axis, tuple | list) and len(axis) == 1 else axis
        if isinstance(axis, int) and id(args[0]) in self._weighed:
            for call, label in self._weighed[id(args[0])][1].items():
                if _varies(label, axis):
                    self.calls[call].kind = "product"

    def _confirm(self, operand: Tensor, axis: int, others: Sequence[Tensor], kind: str) -> None:
        if id(operand) not in self._labels:
            return
        for call, label in self._labels[id(operand)][1].items():
            seen = self.calls[call]
            if not _varies(label, axis) or seen.kind is not None:
                continue
            if seen.gated in {other.untyped_storage().data_ptr() for other in others}:
                seen.reason = "its scores are a linear map of the tensor it weighs: a gate, there is no query"
                continue
            seen.kind = kind
            # The softmax may be a module of its own; the layer is the module around it and the product.
            shared = [name for name, now in zip(seen.stack, self._stack, strict=False) if name == now]
            seen.stack = shared or seen.stack

    # Learned temperatures: a tensor of one number, or one per head, multiplied onto the product of q and k.

    def _find_temperature(self, args: Sequence[Any], out: Tensor) -> None:
        for scores, factor in (args[:2], args[1::-1]):
            if self._trail.of(scores) and isinstance(factor, Tensor) and not self._trail.of(factor):
                axis = scores.dim() - 3
                if factor.numel() == 1 or (axis >= 0 and factor.numel() == scores.shape[axis]):
                    self._temperatures[id(out)] = (out, factor.detach().flatten())

    def _carry_temperature(self, args: Sequence[Any], out: Tensor) -> None:
        before = next((self._temperatures[id(arg)][1] for arg in args if id(arg) in self._temperatures), None)
        if before is not None:
            self._temperatures[id(out)] = (out, before)

    def layer(self, call: SoftmaxCall, number: int) -> AttentionLayer:
        """Describe the layer of a call that was confirmed as attention."""
        name = call.stack[-1]
        heads, head_axis = heads_of(self._modules[name], call.shape, self._batch)
        return AttentionLayer(
            number,
            name,
            block_of(call.stack, self._modules),
            heads,
            head_axis,
            call.fused,
            call.kind or "",
            None if call.temperature is None else tuple(call.temperature.double().tolist()),
        )


def _varies(label: Tensor, axis: int) -> bool:
    """Whether an axis is the one that was normalised."""
    inside = -label.dim() <= axis < label.dim()
    return inside and bool((label != label.narrow(axis, 0, 1)).any())


def _broadcast(label: Tensor, out: Tensor) -> Tensor | None:
    """Return the label in the shape of an output with the same axes; None if the output lost the labelled one."""
    if label.dim() != out.dim() or not out.is_floating_point():
        return None
    for axis, (have, want) in enumerate(zip(label.shape, out.shape, strict=True)):
        if have != want:
            if _varies(label, axis):
                return None
            label = label.narrow(axis, 0, 1)
    return label.expand(out.shape)
