"""Products that sum over axes of their operands, all read as one einsum."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

PRODUCTS = {
    "matmul", "__matmul__", "__rmatmul__", "linalg_matmul", "mm", "bmm", "mv", "baddbmm", "addmm", "einsum", "tensordot",
    "inner", "dot", "linalg_vecdot",
}  # fmt: skip
Letters = tuple[int, ...]  # an axis per entry, by number: equal numbers are one axis of the product


@dataclass(frozen=True)
class Contraction:
    """One operand of a product, with the axes that are summed over together with other operands, or alone."""

    operand: Tensor
    axes: tuple[int, ...]
    alone: tuple[int, ...]
    others: tuple[Tensor, ...]
    _letters: Letters
    _others: frozenset[int]
    _output: Letters
    _shape: torch.Size

    def mixes(self) -> bool:
        """Whether the others are a matrix from the summed axes to as many new ones, as heads are mixed."""
        summed = {self._letters[axis] for axis in self.axes}
        new = self._others - summed
        return bool(summed) and len(new) == len(summed) and not new & set(self._letters)

    def kept(self, label: Tensor, varies: Callable[[Tensor, int], bool]) -> Tensor | None:
        """Return a label of the operand in the shape of the product; None if it varies over an axis that is gone."""
        if len(set(self._letters)) < len(self._letters):
            return None
        for axis, letter in enumerate(self._letters):
            if letter not in self._output:
                if varies(label, axis):
                    return None
                label = label.narrow(axis, 0, 1)
        gone = [axis for axis, letter in enumerate(self._letters) if letter not in self._output]
        left = [letter for letter in self._letters if letter in self._output]
        label = label.reshape([size for axis, size in enumerate(label.shape) if axis not in gone])
        label = label.permute([left.index(letter) for letter in self._output if letter in left])
        sizes = iter(label.shape)
        label = label.reshape([next(sizes) if letter in left else 1 for letter in self._output])
        fits = all(have in (1, want) for have, want in zip(label.shape, self._shape, strict=True))
        return label.expand(self._shape) if fits else None


def contractions(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> list[Contraction]:
    """Return the operands of a product, none for what cannot be read."""
    if not isinstance(out, Tensor):
        return []
    try:
        operands, letters, output = _read(name, args, kwargs)
    except (ValueError, IndexError, KeyError, TypeError):
        return []
    if len(output) != out.dim() or any(len(term) != x.dim() for x, term in zip(operands, letters, strict=True)):
        return []
    return list(_contracted(operands, letters, output, out.shape))


def _contracted(
    operands: Sequence[Tensor], letters: Sequence[Letters], output: Letters, shape: torch.Size
) -> Iterator[Contraction]:
    for at, (operand, term) in enumerate(zip(operands, letters, strict=True)):
        others = tuple(x for n, x in enumerate(operands) if n != at)
        shared = {letter for n, other in enumerate(letters) if n != at for letter in other}
        axes = tuple(axis for axis, letter in enumerate(term) if letter in shared and letter not in output)
        alone = tuple(axis for axis, letter in enumerate(term) if letter not in shared and letter not in output)
        yield Contraction(operand, axes, alone, others, term, frozenset(shared), output, shape)


def _read(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Tensor], list[Letters], Letters]:
    if name == "einsum":
        return _einsum(args)
    if name == "tensordot":
        a, b = args[:2]
        dims = args[2] if len(args) > 2 else kwargs.get("dims", 2)
        return _tensordot(a, b, dims)
    if name in ("inner", "linalg_vecdot", "dot"):
        a, b = args[:2]
        if name == "inner":
            return _tensordot(a, b, ((a.dim() - 1,), (b.dim() - 1,)))
        axis = kwargs.get("dim", -1) % a.dim() if a.dim() == b.dim() else -1
        if axis < 0:
            raise ValueError
        every = tuple(range(a.dim()))
        return [a, b], [every, every], every[:axis] + every[axis + 1 :]
    if name == "linear":
        a, b = args[0] if args else kwargs["input"], args[1] if len(args) > 1 else kwargs["weight"]
        return _tensordot(a, b, ((a.dim() - 1,), (b.dim() - 1,)))
    a, b = args[1:3] if name in ("baddbmm", "addmm") else args[:2]
    a, b = (b, a) if name == "__rmatmul__" else (a, b)
    rows, inner, columns = 0, 1, 2
    left = (inner,) if a.dim() == 1 else (*_batch(a.dim() - 2), rows, inner)
    right = (inner,) if b.dim() == 1 else (*_batch(b.dim() - 2), inner, columns)
    batch = _batch(max(a.dim(), b.dim(), 2) - 2)
    return [a, b], [left, right], (*batch, *(rows,) * (a.dim() > 1), *(columns,) * (b.dim() > 1))


def _batch(count: int) -> Letters:
    """Letters of leading axes, which are aligned from the right."""
    return tuple(range(2 + count, 2, -1))


def _tensordot(a: Tensor, b: Tensor, dims: Any) -> tuple[list[Tensor], list[Letters], Letters]:
    if isinstance(dims, int):
        dims = (range(a.dim() - dims, a.dim()), range(dims))
    left, right = ([axis % x.dim() for axis in axes] for x, axes in zip((a, b), dims, strict=True))
    first = tuple(range(a.dim()))
    second = tuple(left[right.index(axis)] if axis in right else a.dim() + axis for axis in range(b.dim()))
    output = tuple(n for n in first if n not in left) + tuple(n for n in second if n >= a.dim())
    return [a, b], [first, second], output


def _einsum(args: Sequence[Any]) -> tuple[list[Tensor], list[Letters], Letters]:
    if not isinstance(args[0], str):  # operand, sublist, operand, sublist, ..., sublist of the output
        operands = list(args[: len(args) // 2 * 2 : 2])
        terms = [_sublist(args[n]) for n in range(1, len(args), 2)]
        output: str | None = _sublist(args[-1]) if len(args) % 2 else None
    else:
        operands = list(args[1]) if len(args) == 2 and isinstance(args[1], list | tuple) else list(args[1:])
        inputs, arrow, result = args[0].replace(" ", "").partition("->")
        terms, output = inputs.split(","), result if arrow else None
    dotted = [x.dim() - len(t.replace("...", "")) for x, t in zip(operands, terms, strict=True) if "..." in t]
    return _numbered(operands, terms, output, max(dotted, default=0))


def _sublist(axes: Any) -> str:
    return "".join("..." if axis is Ellipsis else chr(ord("A") + axis) for axis in axes)


def _numbered(
    operands: list[Tensor], terms: Sequence[str], output: str | None, dots: int
) -> tuple[list[Tensor], list[Letters], Letters]:
    """Spell out the dots: their axes are numbers below zero, aligned from the right."""

    def letters(term: str, count: int) -> Letters:
        before, dotted, after = term.partition("...")
        middle = range(-count, 0) if dotted else ()
        return (*map(ord, before), *middle, *map(ord, after))

    each = [letters(t, x.dim() - len(t.replace("...", ""))) for x, t in zip(operands, terms, strict=True)]
    if output is None:
        joined = "".join(terms).replace("...", "")
        output = ("..." if dots else "") + "".join(sorted(c for c in set(joined) if joined.count(c) == 1))
    return operands, each, letters(output, dots)
