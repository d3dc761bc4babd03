"""Softmaxes written by hand: exponentials that are divided by their own sum, before or after they weigh values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vitattack.models.attention.attention_map import ByHand
from vitattack.models.attention.contractions import Contraction
from vitattack.models.attention.functions import CASTS, DIVISIONS, MULTIPLICATIONS, VIEWS
from vitattack.models.attention.scores import viewed

# Functions that leave each weight in its place, and those that make a divisor of a sum.
IN_PLACE_OF = CASTS | MULTIPLICATIONS | DIVISIONS | {
    "dropout", "dropout_", "masked_fill", "masked_fill_", "where", "nan_to_num", "contiguous",
}  # fmt: skip
INTO_DIVISORS = VIEWS | CASTS | MULTIPLICATIONS | {
    "add", "__add__", "__radd__", "add_", "__iadd__", "sub", "clamp", "clamp_", "clamp_min", "clip", "maximum", "where",
    "masked_fill", "masked_fill_",
}  # fmt: skip
INVERSES = {"reciprocal", "__rtruediv__", "__rdiv__", "pow", "__pow__"}
ROUNDING = 1e-3


@dataclass
class Exponential:
    """One exponential of the probing forward: where its entries went."""

    number: int
    shape: tuple[int, ...]
    group: set[int]  # exponentials that share a divisor
    summed: Tensor | None = None  # per entry the first of those it was summed with
    positions: Tensor | None = None  # per entry its place in that sum
    contracted: Tensor | None = None
    rows: Tensor | None = None  # sums of the rows that weigh values
    whole: bool = True  # the weights of a row sum to one

    def scattered(self, entries: Tensor, values: Tensor) -> Tensor:
        """Return a value per entry, -1 for entries that are not there."""
        result = torch.full((_size(self.shape),), -1, dtype=torch.long, device=entries.device)
        result[entries.flatten()] = values.flatten()
        return result

    def axis(self) -> int | None:
        """Return the axis that was summed, None where it is no axis of the scores."""
        return None if self.summed is None else self.axis_of(self.summed)

    def by_hand(self) -> ByHand:
        """Describe its part in the softmax: weights have been summed, others only join the sum."""
        return ByHand(self.axis(), self.summed is not None and self.positions is None, self.whole)

    def axis_of(self, fibres: Tensor) -> int | None:
        entries = torch.arange(fibres.numel(), device=fibres.device).view(self.shape)
        for axis, size in enumerate(self.shape):
            if size > 1 and torch.equal(_first(entries, (axis,)).flatten(), fibres):
                return axis
        return None


@dataclass
class Followed:
    """A tensor with the exponentials it is made of, kept so that its id is not reused."""

    tensor: Tensor
    calls: set[int]
    inverse: bool = False


@dataclass
class Quotients:
    """Follows exponentials, their sums and their products with values until a quotient confirms them.

    `parts` are weights that are not normalised yet, entry by entry; `sums` are what they may be divided by, `mixed`
    their products with values.
    """

    quotient: Callable[[Tensor, int, Tensor], None]  # (weights, call, positions along the row)
    attention: Callable[[int, tuple[Tensor, ...]], None]  # (call, values)
    calls: dict[int, Exponential] = field(default_factory=dict)
    scores: dict[int, tuple[Tensor, int, int]] = field(default_factory=dict)  # their version, and the first exponential
    parts: dict[int, tuple[Tensor, dict[int, Tensor]]] = field(default_factory=dict)
    sums: dict[int, Followed] = field(default_factory=dict)
    mixed: dict[int, Followed] = field(default_factory=dict)
    weighed: dict[int, tuple[Tensor, dict[int, tuple[Tensor, Tensor]]]] = field(default_factory=dict)
    values: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)

    def start(self, number: int, scores: Tensor, version: int, out: Tensor) -> None:
        """Number the entries of an exponential; those of the same scores, computed again, are the same entries."""
        self.calls[number] = Exponential(number, tuple(out.shape), {number})
        _, before, first = self.scores.get(id(scores), (scores, version, number))
        if before != version or out is scores:
            first = number
        self.scores[id(scores)] = (scores, version, first)
        self._join({first, number})
        entries = torch.arange(out.numel(), device=out.device).view(out.shape)
        self.parts[id(out)] = (out, {first: entries})

    def step(self, func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        """Follow a function that is no product."""
        if not self.parts or not args:
            return
        operands = [arg for arg in args if isinstance(arg, Tensor)]
        if name in DIVISIONS | MULTIPLICATIONS and len(operands) == 2 and isinstance(out, Tensor):
            self._divide(name, operands, out)
            self._weigh(operands, out)
        if name == "normalize" and id(args[0]) in self.parts and _argument(args, kwargs, 1, "p", 2.0) == 1:
            self._sum(args[0], (_argument(args, kwargs, 2, "dim", 1),))
            self._quotients(args[0], out)
        if name == "sum" and isinstance(out, Tensor):
            axes = summed_axes(args, kwargs)
            if id(args[0]) in self.parts:
                self._follow(self.sums, out, self._sum(args[0], axes))
            for number, (entries, values) in self.weighed.get(id(args[0]), (None, {}))[1].items():
                fibres = self.calls[number].scattered(entries, _first(entries, axes))
                self._mix(number, fibres, (values,), out)
        self._carry_followed(name, args, operands, out)
        self._carry_parts(func, name, args, kwargs, out)

    def contract(self, contraction: Contraction, out: Tensor) -> None:
        """Follow weights that are multiplied with values and summed."""
        known = self.parts.get(id(contraction.operand))
        if known is None:
            return
        if not contraction.axes and contraction.alone:
            self._follow(self.sums, out, self._sum(contraction.operand, contraction.alone))
        for number, entries in known[1].items() if contraction.axes else ():
            call = self.calls[number]
            fibres = call.scattered(entries, _first(entries, contraction.axes))
            self._mix(number, fibres, contraction.others, out)
            rows = call.rows = contraction.operand.detach().double().sum(contraction.axes)
            axis = call.axis_of(fibres)
            if call.summed is None and axis is not None and bool(((rows - 1).abs() < ROUNDING).all()):
                call.summed, call.positions = fibres, None
                self.attention(number, contraction.others)

    def group(self, number: int) -> set[int]:
        return self.calls[number].group

    def _mix(self, number: int, fibres: Tensor, values: tuple[Tensor, ...], out: Tensor) -> None:
        self.calls[number].contracted = fibres
        self.values[number] = values
        self._follow(self.mixed, out, {number})

    def _sum(self, part: Tensor, axes: Sequence[int]) -> set[int]:
        found = set()
        for number, entries in self.parts[id(part)][1].items():
            call = self.calls[number]
            axes = tuple(axis % entries.dim() for axis in axes)
            rest = [axis for axis in range(entries.dim()) if axis not in axes]
            rows = entries.permute(*rest, *axes)
            rows = rows.reshape(*rows.shape[: len(rest)], -1)
            places = torch.arange(rows.shape[-1], device=rows.device).expand(rows.shape)
            call.positions = torch.zeros(_size(call.shape), dtype=torch.long, device=rows.device)
            call.positions[rows.flatten()] = places.flatten()
            call.summed = call.scattered(entries, _first(entries, axes))
            found.add(number)
        return found

    def _divide(self, name: str, operands: Sequence[Tensor], out: Tensor) -> None:
        pairs = [(operands[0], operands[1])]
        if name in MULTIPLICATIONS:
            pairs.append((operands[1], operands[0]))
        for top, bottom in pairs:
            if id(top) in self.mixed and id(bottom) in self.mixed and name in DIVISIONS:
                self._divide_by_weighed_ones(self.mixed[id(top)].calls, bottom)
            divisor = self.sums.get(id(bottom))
            if divisor is None or divisor.inverse != (name in MULTIPLICATIONS):
                continue
            divided = set().union(*(self.group(number) for number in divisor.calls))
            if id(top) in self.parts and divided & set(self.parts[id(top)][1]):
                self._quotients(top, out)
            elif id(top) in self.mixed and self.mixed[id(top)].calls <= divided:
                self._confirm(self.mixed[id(top)].calls)

    def _divide_by_weighed_ones(self, calls: set[int], bottom: Tensor) -> None:
        """Take weights times ones, a column of the values or a product of its own, for their sum."""
        for number in calls & self.mixed[id(bottom)].calls:
            call, given = self.calls[number], bottom.detach().double()
            given = given.squeeze(-1) if given.dim() and given.shape[-1] == 1 else given
            if call.rows is not None and call.rows.shape == given.shape and torch.allclose(call.rows, given, ROUNDING):
                call.summed = call.contracted
                self._confirm({number})

    def _weigh(self, operands: Sequence[Tensor], out: Tensor) -> None:
        """Weights times values, entry by entry, which a sum follows."""
        for weights, values in (operands, operands[::-1]):
            if id(weights) in self.parts and id(values) not in self.parts and is_outer(weights, values, out):
                for number, entries in self.parts[id(weights)][1].items():
                    self.weighed.setdefault(id(out), (out, {}))[1][number] = (entries.expand(out.shape), values)

    def _quotients(self, top: Tensor, out: Tensor) -> None:
        """Hand over weights that a division has normalised."""
        for number, entries in self.parts[id(top)][1].items():
            call = self.calls[number]
            if call.summed is None or call.positions is None or call.axis() is None or entries.shape != out.shape:
                continue
            rows = torch.zeros(_size(call.shape), dtype=torch.float64, device=out.device)
            rows.scatter_add_(0, call.summed[entries.flatten()], out.detach().double().flatten())
            rows = rows[torch.unique(call.summed)]
            if bool((out >= 0).all()) and bool((rows <= 1 + ROUNDING).all()):
                call.whole = bool((rows >= 1 - ROUNDING).all()) and len(call.group) == 1
                self.quotient(out, number, call.positions[entries])

    def _confirm(self, numbers: set[int]) -> None:
        """Confirm weights that were divided after they had weighed the values."""
        for number in sorted(numbers):
            call = self.calls[number]
            if call.summed is None or call.contracted is None or not torch.equal(call.summed, call.contracted):
                return
            if call.axis() is None:
                return
        for number in sorted(numbers):
            self.calls[number].whole &= len(self.calls[number].group) == 1
            self.attention(number, self.values[number])

    def _carry_followed(self, name: str, args: Sequence[Any], operands: Sequence[Tensor], out: Any) -> None:
        for table in (self.sums, self.mixed):
            calls = set().union(*(table[id(arg)].calls for arg in operands if id(arg) in table))
            if not calls:
                continue
            inverse = any(table[id(arg)].inverse for arg in operands if id(arg) in table)
            if name in INVERSES and ("pow" not in name or args[1:] == (-1,)):
                inverse = not inverse
            elif name not in INTO_DIVISORS:
                continue
            # Other exponentials that are added to a sum, or rescale it, belong to the same softmax.
            for arg in operands:
                if id(arg) in self.parts and id(arg) not in table:
                    calls |= set(self.parts[id(arg)][1])
            self._join(calls)
            for tensor in out if isinstance(out, tuple | list) else (out,):
                if isinstance(tensor, Tensor):
                    contracted = {n for n in calls if table is self.sums or self.calls[n].contracted is not None}
                    self._follow(table, tensor, contracted, inverse)

    def _carry_parts(self, func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        if name not in VIEWS and name not in IN_PLACE_OF:
            return
        for at, arg in enumerate(args):
            if id(arg) not in self.parts:
                continue
            for number, entries in self.parts[id(arg)][1].items():
                for tensor, moved in _moved(func, name, args, kwargs, at, entries, out):
                    if id(tensor) in self.sums or id(tensor) in self.mixed:
                        continue
                    self.parts.setdefault(id(tensor), (tensor, {}))[1][number] = moved

    def _follow(self, table: dict[int, Followed], tensor: Tensor, calls: set[int], inverse: bool = False) -> None:
        before = table.get(id(tensor))
        table[id(tensor)] = Followed(tensor, calls | (before.calls if before else set()), inverse)

    def _join(self, calls: set[int]) -> None:
        joined = set().union(*(self.group(number) for number in calls))
        for number in joined:
            self.calls[number].group = joined


def _moved(
    func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], at: int, entries: Tensor, out: Any
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the outputs of a function with the entries of argument `at` that they hold."""
    if name in VIEWS:
        moved = viewed(func, name, args, kwargs, at, entries)
        outs = out if isinstance(out, tuple | list) else (out,)
        pairs = zip(outs, moved if isinstance(moved, tuple | list) else (moved,), strict=True)
        yield from (
            (tensor, one) for tensor, one in pairs if tensor.dtype.is_floating_point and tensor.shape == one.shape
        )
    elif isinstance(out, Tensor) and out.shape == entries.shape:
        yield out, entries


def _first(entries: Tensor, axes: Sequence[int]) -> Tensor:
    """Return in each place the least entry of its row over some axes."""
    return entries.amin(tuple(axes), keepdim=True).expand(entries.shape)


def is_outer(weights: Tensor, values: Tensor, out: Tensor) -> bool:
    """Whether a product repeats both factors: weights over channels, values over queries."""
    shapes = [(1,) * (out.dim() - x.dim()) + tuple(x.shape) for x in (weights, values)]
    grown = [{axis for axis, size in enumerate(shape) if size == 1 < out.shape[axis]} for shape in shapes]
    return bool(grown[0] and grown[1])


def _size(shape: Sequence[int]) -> int:
    return int(torch.Size(shape).numel())


def summed_axes(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the axes that a call of `sum` adds up, counted from the front."""
    axes, dims = _argument(args, kwargs, 1, "dim", kwargs.get("axis")), args[0].dim()
    axes = range(dims) if axes is None else axes if isinstance(axes, tuple | list) else (axes,)
    return tuple(axis % dims for axis in axes)


def _argument(args: Sequence[Any], kwargs: Mapping[str, Any], at: int, name: str, default: Any) -> Any:
    return args[at] if len(args) > at else kwargs.get(name, default)
