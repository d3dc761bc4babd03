"""Readings of a checkpoint: which of its dictionaries, without which prefix, are the tensors of an architecture."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any

from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.core.words import printable

Shapes = Mapping[str, tuple[int, ...]]
# The tensors as they would be loaded, and the shapes of the model that would load them, to which an adapter may add.
Adapted = Callable[[dict[str, Tensor]], tuple[dict[str, Tensor], Shapes]]
DEEPEST = 4
MOST_CONTAINERS = 200
_NORMALISER = re.compile(r"(?:\w+\.)*(?:mean|std|mu|sigma)")
_PREFIX = re.compile(r"(?:\w+\.)+")


@dataclass(frozen=True)
class Reading:
    """Tensors of a checkpoint, from one of its dictionaries and without a prefix of their names."""

    state: dict[str, Tensor]
    key: str  # empty: the top level
    prefix: str
    left_out: tuple[str, ...]  # tensors of the same dictionary without the prefix

    @property
    def words(self) -> str:
        where = f"tensors under {self.key}" if self.key else "its tensors"
        cut = f" without the prefix {self.prefix}" if self.prefix else ""
        rest = f" ({len(self.left_out)} others left out, such as {self.left_out[0]})" if self.left_out else ""
        return f"{where}{cut}{rest}"

    @property
    def options(self) -> str:
        """The options that choose this reading."""
        return (
            " ".join(
                [
                    *([f"--weights-key {self.key}"] if self.key else []),
                    f"--strip-prefix {self.prefix}" if self.prefix else "",
                ]
            ).strip()
            or "--weights-key ."
        )


def fitting_reading(
    content: Mapping[Any, Any],
    wanted: Shapes,
    name: str,
    *,
    key: str | None = None,
    prefix: str | None = None,
    adapted: Adapted | None = None,
) -> Reading | None:
    """The only reading that fits an architecture, None if there is none; several are refused with the options to choose.

    A key or prefix given by the user restricts the search; `adapted` is what happens to tensors before they are loaded,
    and it must leave the model that will load them as it is: all readings are tried on the same one.
    """
    known = readings(content, wanted, key, prefix, whole=adapted is not None)
    fitting = [reading for reading in known if _fits(reading, wanted, adapted)]
    if len(fitting) > 1:
        choices = " or ".join(reading.options for reading in fitting[:4])
        raise UsageError(
            f"'{printable(name)}' holds {len(fitting)} sets of tensors that fit the architecture: add {choices}"
        )
    if not fitting:
        return None
    normaliser = next((tensor for tensor in fitting[0].left_out if _NORMALISER.fullmatch(tensor)), None)
    if normaliser is not None:
        raise UsageError(
            f"'{printable(name)}' holds a normaliser beside its model ({printable(normaliser, 60)}): "
            "add --adapter normaliser, which compares it with --normalize"
        )
    return fitting[0]


def nearest_reading(content: Mapping[Any, Any], wanted: Shapes, key: str | None, prefix: str | None) -> Reading | None:
    """The reading that shares most names with an architecture it does not fit."""
    found = list(readings(content, wanted, key, prefix))
    return max(found, key=lambda reading: len(reading.state.keys() & wanted.keys()), default=None)


def readings(
    content: Mapping[Any, Any], wanted: Shapes, key: str | None, prefix: str | None, whole: bool = False
) -> Iterator[Reading]:
    """Every way to read a checkpoint that gives some tensor the name of one of the architecture's.

    With `whole`, for adapters, which rename tensors, only a prefix of all names is cut.
    """
    for path, tensors in _containers(content):
        if key is not None and path != ("" if key == "." else key):
            continue
        cuts = {prefix} if prefix is not None else {"", _common(tensors)} if whole else _prefixes(tensors, wanted)
        for cut in sorted(cuts):
            state = {name[len(cut) :]: tensor for name, tensor in tensors.items() if name.startswith(cut)}
            if state:
                yield Reading(state, path, cut, tuple(name for name in tensors if not name.startswith(cut)))


def _fits(reading: Reading, wanted: Shapes, adapted: Adapted | None) -> bool:
    try:
        state, wanted = adapted(reading.state) if adapted else (reading.state, wanted)
    except UsageError:
        return False
    return state.keys() == wanted.keys() and all(tuple(state[name].shape) == shape for name, shape in wanted.items())


def _containers(content: Mapping[Any, Any]) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Dictionaries with tensors, each with its path."""
    waiting: list[tuple[str, Mapping[Any, Any], int]] = [("", content, 0)]
    for path, holder, depth in waiting:  # grows as it goes
        tensors = {name: value for name, value in holder.items() if isinstance(name, str) and isinstance(value, Tensor)}
        if tensors:
            yield path, tensors
        if depth < DEEPEST and len(waiting) < MOST_CONTAINERS:
            inner = [
                (str(name), value)
                for name, value in holder.items()
                if isinstance(name, str) and isinstance(value, Mapping)
            ]
            waiting += [(f"{path}.{name}" if path else name, value, depth + 1) for name, value in inner]


def _common(tensors: Mapping[str, Tensor]) -> str:
    """The dotted words that all names begin with."""
    shared = commonprefix(list(tensors))  # noqa: RUF071  # names, not paths
    return shared[: shared.rfind(".") + 1]


def _prefixes(tensors: Mapping[str, Tensor], wanted: Shapes) -> set[str]:
    """What stands before names of the architecture in names of the file: beginnings that are dotted words."""
    if not wanted:
        return set()
    marks = sorted(wanted, key=lambda name: (-name.count("."), -len(name), name))[:3]
    found = {name[: -len(mark)] for mark in marks for name in tensors if name.endswith(mark)}
    return {cut for cut in found if not cut or _PREFIX.fullmatch(cut)}
