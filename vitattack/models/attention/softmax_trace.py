"""Trace of one forward: every softmax output is labelled and followed to its use."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vitattack.models.attention.attention_map import AttentionMap, Place
from vitattack.models.attention.by_hand import Quotients, is_outer, summed_axes
from vitattack.models.attention.contractions import PRODUCTS, Contraction, contractions
from vitattack.models.attention.functions import CASTS, EXPONENTIALS, MULTIPLICATIONS, VIEWS
from vitattack.models.attention.scores import ARITHMETIC, MAPS, Trail, added_mask, viewed
from vitattack.models.attention.softmax_calls import NESTED, OVER_LAYERS, Found, SoftmaxCall
from vitattack.models.attention.softmax_mode import SoftmaxMode, softmax_axis, softmax_input
from vitattack.models.attention.vmapped import is_mapped, storage_of, unmapped

# The logits of a gate are a map of the tensor it weighs, just before the softmax; a few maps back is far enough.
RECENT_MAPS = 8
RECENT_STEPS = 16
STEPS = CASTS | ARITHMETIC | {"reshape", "contiguous", "squeeze", "flatten", "topk", "sort", "__getitem__"}
SCATTERS = {"scatter", "scatter_"}  # (tensor, axis, index, source)
Labels = dict[int, tuple[Tensor, dict[int, Tensor]]]  # per tensor and softmax, positions along the row of the softmax


class SoftmaxTrace(SoftmaxMode):
    """Labels every softmax output with positions along its axis and follows the labels to the product with values."""

    def __init__(self, modules: Mapping[str, nn.Module], batch: int) -> None:
        super().__init__(exponentials=True)
        self._modules, self._batch = modules, batch
        self._weights = {
            storage_of(weight) for module in modules.values() for weight in module.parameters(recurse=False)
        }
        self._stack: list[str] = []
        self.calls: list[SoftmaxCall] = []
        self.marks: list[Tensor] = []  # per softmax a leaf of autograd's graph that its output depends on
        self.quotients = Quotients(self._divided, self._attention)
        self._labels: Labels = {}
        self._weighed: Labels = {}
        self._maps: deque[tuple[Tensor, Tensor]] = deque(maxlen=RECENT_MAPS)
        self._steps: deque[tuple[Tensor, Tensor]] = deque(maxlen=RECENT_STEPS)
        self._products: deque[Tensor] = deque(maxlen=RECENT_MAPS)
        self._trail = Trail(exact=True)
        self._places: dict[Place, Tensor] = {}
        self._unseen: list[tuple[str, str]] = []
        self._temperatures: dict[int, tuple[Tensor, Tensor]] = {}

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Keep track of the modules that are executing."""
        handles = []
        for name, module in self._modules.items():
            if isinstance(module, torch.jit.ScriptModule):
                continue  # takes no hooks, and shows nothing anyway
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
        if name in EXPONENTIALS:
            return self._exponential(call, func, args, kwargs)
        out = func(*args, **kwargs)
        first: Tensor = out[0] if isinstance(out, tuple) else out
        marked = first * self._mark(first)
        (given, named), _ = unmapped(args, kwargs)
        if name == "softmax":
            self.calls.append(self._softmax(call, args, kwargs, softmax_input(given, named), marked))
        else:
            self.calls.append(self._fused(name, given, named))
        self._trail.clear()
        self._temperatures.clear()
        return (marked, *out[1:]) if isinstance(out, tuple) else marked

    def _mark(self, out: Tensor) -> Tensor:
        self.marks.append(torch.ones((), dtype=out.dtype, device=out.device, requires_grad=out.is_floating_point()))
        return self.marks[-1]

    def _softmax(self, call: int, args: Any, kwargs: Any, z: Tensor, out: Tensor) -> SoftmaxCall:
        """Note a softmax over scores z, which are without the mapped axes of vmap in its arguments."""
        inside = softmax_input(args, kwargs)
        axis = softmax_axis(args, kwargs, inside.dim())
        seen = SoftmaxCall([*self._stack], tuple(z.shape), axis + z.dim() - inside.dim(), False, None)
        self._describe(seen, inside)
        seen.gated = self._gates(storage_of(z))
        seen.compares = self._compares(inside)
        if inside.shape[axis] == 1:
            seen.reason = "it normalises a single entry, so its output is always 1"
        if seen.over_layers():
            seen.reason = OVER_LAYERS
            return seen
        sizes = [1] * inside.dim()
        sizes[axis] = inside.shape[axis]
        label = torch.arange(inside.shape[axis], device=z.device).view(sizes).expand(inside.shape)
        self._labels[id(out)] = (out, {call: label})
        return seen

    def _fused(self, name: str, args: Any, kwargs: Any) -> SoftmaxCall:
        q, k = (args[n] if len(args) > n else kwargs[key] for n, key in enumerate(("query", "key")))
        mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
        if q.is_nested:
            return SoftmaxCall([*self._stack], (), 0, True, None, NESTED)
        kind = "flex" if name == "flex_attention" else "sdpa"
        seen = SoftmaxCall([*self._stack], (*q.shape[:-1], k.shape[-2]), q.dim() - 1, True, kind)
        self._describe(seen, mask if isinstance(mask, Tensor) else None)
        return seen

    def _exponential(self, call: int, func: Any, args: Any, kwargs: Any) -> Tensor:
        """Note an exponential, which is attention only if a quotient confirms it."""
        z: Tensor = args[0]
        seen = SoftmaxCall([*self._stack], tuple(z.shape), 0, False, None, by_hand=True)
        self._describe(seen, z)
        origin = self._history(z)[-1]
        seen.gated = self._gates(storage_of(origin)) or storage_of(origin)
        seen.compares = self._compares(z)
        self.calls.append(seen)
        version = 0 if z.is_inference() else z._version
        out: Tensor = func(*args, **kwargs)
        mark = self._mark(out)
        out = out.mul_(mark) if out is z else out * mark
        if out.is_floating_point() and out.dim() > 1 and not is_mapped(out):
            self.quotients.start(call, z, version, out)
        return out

    def _history(self, z: Tensor) -> list[Tensor]:
        """Return a tensor and those it was made of, step by step."""
        found = [z]
        for made, given in reversed(self._steps):
            if made is found[-1]:
                found.append(given)
        return found

    def _compares(self, z: Tensor) -> bool:
        """Whether scores come from a product of two tensors of which none is a weight of the model: queries and keys."""
        products = {storage_of(out) for out in self._products}
        return any(storage_of(before) in products for before in self._history(z))

    def _gates(self, scores: int) -> int | None:
        """Return the storage of the tensor whose linear map the scores in some storage are."""
        return next((storage_of(x) for y, x in self._maps if storage_of(y) == scores), None)

    def _describe(self, seen: SoftmaxCall, scores: Tensor | None) -> None:
        trace = self._trail.of(scores)
        if trace is not None and trace.addition is not None:
            seen.places.add(trace.addition)
        if scores is not None and id(scores) in self._temperatures:
            seen.temperature = self._temperatures[id(scores)][1]

    def other(self, func: Any, name: str, args: Any, kwargs: Any, out: Any, place: Place | None) -> None:
        if isinstance(out, Tensor) and name in MAPS:
            self._maps.append((out, args[0] if args else kwargs["input"]))
        if name in STEPS and args and isinstance(args[0], Tensor):
            made = out if isinstance(out, tuple | list) else (out,)
            self._steps.extend((tensor, args[0]) for tensor in made if isinstance(tensor, Tensor))
        if name in PRODUCTS:
            operands = contractions(name, args, kwargs, out)
            for operand in operands:
                self._contract(operand, out)
            if len(operands) == 2 and not any(storage_of(one.operand) in self._weights for one in operands):
                self._products.append(out)
        else:
            self.quotients.step(func, name, args, kwargs, out)
        if name == "linear":
            self._contract_activations(args, kwargs, out)
        if name in SCATTERS and len(args) == 4:
            self._scatter(args, out)
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
        if "attention" in name or "attn" in name:
            self._unseen.append((self._stack[-1], f"{name} is a kernel that hides its scores"))
        if name not in PRODUCTS:
            self._carry(self._labels, func, name, args, kwargs, out)
            if name in VIEWS:
                self._carry(self._weighed, func, name, args, kwargs, out)

    # Labels: from a softmax to the product that confirms it as attention.

    def _carry(self, table: Labels, func: Any, name: str, args: Sequence[Any], kwargs: Any, out: Any) -> None:
        for at, arg in enumerate(args):
            if id(arg) not in table:
                continue
            for call, label in table[id(arg)][1].items():
                outs = out if isinstance(out, tuple | list) else (out,)
                if name in VIEWS:
                    moved = viewed(func, name, args, kwargs, at, label)
                    moved = moved if isinstance(moved, tuple | list) else (moved,)
                else:
                    moved = [_broadcast(label, o) if isinstance(o, Tensor) else None for o in outs]
                for tensor, following in zip(outs, moved, strict=True):
                    if not isinstance(tensor, Tensor) or following is None:
                        continue
                    if table is self._weighed or id(tensor) not in self._weighed:
                        table.setdefault(id(tensor), (tensor, {}))[1][call] = following

    def _contract(self, product: Contraction, out: Tensor) -> None:
        for axis in product.axes:
            self._confirm(product.operand, axis, product.others)
        self.quotients.contract(product, out)
        if id(product.operand) in self._labels and product.mixes():
            for call, label in self._labels[id(product.operand)][1].items():
                moved = product.kept(label, _varies)
                if moved is not None:
                    self._labels.setdefault(id(out), (out, {}))[1][call] = moved

    def _contract_activations(self, args: Any, kwargs: Any, out: Any) -> None:
        """A linear map by a tensor that is no weight of the model is a product."""
        for operand in contractions("linear", args, kwargs, out):
            if not any(storage_of(other) in self._weights for other in operand.others):
                self._contract(operand, out)

    def _scatter(self, args: Any, out: Tensor) -> None:
        """Weights of the highest scores, put back in their places."""
        _, axis, _, source = args
        for call, label in self._labels.get(id(source), (None, {}))[1].items():
            if _varies(label, axis):
                sizes = [1] * out.dim()
                sizes[axis] = out.shape[axis]
                places = torch.arange(out.shape[axis], device=out.device).view(sizes).expand(out.shape)
                self._labels.setdefault(id(out), (out, {}))[1][call] = places

    def _weigh(self, args: Sequence[Any], out: Tensor) -> None:
        for weights, values in (args[:2], args[1::-1]):
            if id(weights) not in self._labels or not isinstance(values, Tensor) or not values.dim():
                continue
            for call, label in self._labels[id(weights)][1].items():
                # A vector of positions on the last axis, weights of queries and values of channels in one product, or one
                # query. Branches, which are not attention, are stacked on a front axis and compared with nothing.
                vector = _varies(label, -1) and values.shape[-1] == label.shape[-1] and out.shape != weights.shape
                outer = is_outer(weights, values, out) and id(values) not in self._labels
                pooled = self.calls[call].compares and _varies(label, -2) and out.shape != weights.shape
                if vector or outer or pooled:
                    moved = _broadcast(label, out)
                    if moved is not None:
                        self._weighed.setdefault(id(out), (out, {}))[1][call] = moved

    def _sum(self, args: Sequence[Any], kwargs: Any) -> None:
        if args and id(args[0]) in self._weighed:
            axes = summed_axes(args, kwargs)
            for call, label in self._weighed[id(args[0])][1].items():
                if any(_varies(label, axis) for axis in axes):
                    self.calls[call].kind = "product"

    def _confirm(self, operand: Tensor, axis: int, others: Sequence[Tensor]) -> None:
        if id(operand) not in self._labels:
            return
        for call, label in self._labels[id(operand)][1].items():
            if _varies(label, axis):
                self._attention(call, others)

    def _attention(self, call: int, values: Sequence[Tensor]) -> None:
        """Take a softmax for attention unless it is a gate."""
        seen = self.calls[call]
        if seen.kind is not None:
            return
        if seen.gated in {storage_of(other) for other in values}:
            seen.reason = "its scores are a linear map of the tensor it weighs: a gate, there is no query"
            return
        if len(seen.shape) < 3 and all(storage_of(other) in self._weights for other in values):
            seen.reason = "it chooses among weights of the model, not among values of the image"
            return
        if seen.by_hand:
            axis = self.quotients.calls[call].axis()
            if axis is None:
                return
            seen.axis = axis
            if seen.over_layers():
                seen.reason = OVER_LAYERS
                return
        seen.kind = "softmax"
        # The softmax may be a module of its own; the layer is the module around it and the product.
        shared = [name for name, now in zip(seen.stack, self._stack, strict=False) if name == now]
        seen.stack = shared or seen.stack

    def _divided(self, weights: Tensor, call: int, positions: Tensor) -> None:
        """Label weights that were normalised by hand."""
        self._labels.setdefault(id(weights), (weights, {}))[1][call] = positions

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

    def attention_map(self, model: str, unseen: Sequence[tuple[str, str]]) -> AttentionMap:
        """Describe what was found."""
        return Found(self.calls, self.quotients, self._modules, self._batch).attention_map(
            model, [*self._unseen, *unseen]
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
