"""Per-sample records: plain data, no torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from math import inf
from operator import itemgetter
from typing import Any, Literal, get_args

Status = Literal["clean_wrong", "robust", "fooled", "invalid"]


class UnknownFields(ValueError):
    """A record with everything that records have, and more: another version wrote it."""


@dataclass(frozen=True)
class SampleRecord:
    """Outcome of one sample; `adversarial` is the prediction on the candidate, -1 if there is none."""

    index: int
    label: int
    clean: int
    adversarial: int
    status: Status
    size: float
    fragile: bool
    violation: bool
    first_fooled: int
    forwards: int
    backwards: int
    evidence: dict[str, int | float | str] = field(default_factory=dict)
    pass_number: int = 1  # a later pass over survivors writes a sample again; the last record counts

    def line(self) -> str:
        return json.dumps(vars(self), separators=(",", ":"))

    @classmethod
    def parse(cls, line: str | bytes) -> SampleRecord:
        """The record in a line; raises ValueError for anything that is none."""
        try:
            return cls.of(json.loads(line))
        except RecursionError as error:
            raise ValueError("nested too deeply for a record") from error

    @classmethod
    def of(cls, content: Any) -> SampleRecord:
        """The record of plain data, every field of which is checked; raises ValueError."""
        try:
            values = _values(content)
        except (KeyError, TypeError):
            raise ValueError("a record lacks a field") from None
        if len(content) > len(values):
            raise UnknownFields(f"a record has the unknown field '{next(iter(content.keys() - set(NAMES)))}'")
        if tuple(map(type, values)) != TYPES or not PLAIN.issuperset(map(type, values[11].values())):
            raise ValueError("a field of a record has another type than it should")
        index, label, clean, adversarial, status, size, _, _, first_fooled, forwards, backwards, _, number = values
        if (
            min(index, label, forwards, backwards) < 0
            or min(clean, adversarial, first_fooled) < -1
            or not (0 <= size < inf or size == -1)
            or status not in STATUSES
            or number < 1
        ):
            raise ValueError("a field of a record is out of range")
        return cls.made(values)

    @classmethod
    def made(cls, values: Iterable[Any]) -> SampleRecord:
        """The record with these values of its fields, in their order, which are taken as they are."""
        record = object.__new__(cls)
        vars(record).update(zip(NAMES, values, strict=True))  # ten times as quick as the constructor of a frozen class
        return record


NAMES = tuple(column.name for column in fields(SampleRecord))
TYPES = (int, int, int, int, str, float, bool, bool, int, int, int, dict, int)
PLAIN = {int, float, str, bool}
STATUSES = get_args(Status)
_values = itemgetter(*NAMES)


def values_of(record: SampleRecord) -> tuple[Any, ...]:
    """The values of the fields, in their order."""
    values: tuple[Any, ...] = _values(vars(record))
    return values


# Called with the records just written and the number of samples of the run; the first call brings the stored ones.
RecordListener = Callable[[Sequence[SampleRecord], int], None]
