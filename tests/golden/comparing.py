"""Compare a stored record with a new one: to the byte where both were made alike, else by what is discrete."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from . import cases
from .cases import Case, Command, Evaluation
from .renaming import renamed_in
from .storing import Record

Kind = Literal["wording", "rounding", "bytes", "value"]
GRAVITY: dict[Kind, int] = {"wording": 0, "rounding": 1, "bytes": 2, "value": 3}
EQUAL, OTHER_BYTES, DIFFERENT = "equal to the byte", "same verdicts, other bytes", "different"

# Columns of a sample that make its verdict; the others are how it came about.
VERDICT = ("index", "label", "clean", "status", "fragile", "violation")
# Sentences: reworded freely as long as their numbers stay.
PROSE = frozenset({"doubts", "notes", "title", "summary", "paper", "cost", "error", "what"})
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?!\w)")
ROUNDING = 1e-9  # relative: statistics computed by another formula
ONE_OF = 48  # statuses may differ on another machine
# What of a result does not hang on how many samples fell.
SETTLED = ("result.model", "result.data", "result.n", "result.seed", "result.threat", "result.clean.*")
SETTLED_PER_ATTACK = ("attack", "threat", "n", "clean.*")
MISSING = "(missing)"
Leaf = str | int | float | bool | None


@dataclass(frozen=True)
class Difference:
    where: str
    stored: Leaf
    found: Leaf
    kind: Kind

    def __str__(self) -> str:
        return f"{self.where}: {self.stored!r} -> {self.found!r}"


@dataclass(frozen=True)
class Comparison:
    """Differences that nobody has listed, and how many somebody has."""

    differences: tuple[Difference, ...]
    listed: int = 0

    @property
    def outcome(self) -> str:
        gravest = max((GRAVITY[d.kind] for d in self.differences), default=0)
        return DIFFERENT if gravest == GRAVITY["value"] else OTHER_BYTES if gravest else EQUAL

    @property
    def first(self) -> Difference | None:
        """The first of the gravest."""
        return max(self.differences, key=lambda d: GRAVITY[d.kind], default=None)


def compare(case: Case, stored: Record, found: Record, *, same_environment: bool) -> Comparison:
    raw, stored = stored, _renamed(stored)
    if same_environment or (isinstance(case, Command) and not case.measures):
        every = [*_samples(raw, stored, found), *_objects(stored.content, found.content)]
    else:
        every = list(_elsewhere(case, stored, found))
    unlisted = [d for d in every if not _is_listed(case, d)]
    return Comparison(tuple(unlisted), len(every) - len(unlisted))


def _renamed(record: Record) -> Record:
    """Texts through the table of new names; a line without any stays as it is, to the byte."""
    if not cases.RENAMED:
        return record
    return Record(tuple(map(_renamed_line, record.samples)), renamed_in(record.content))


def _renamed_line(line: str) -> str:
    content = json.loads(line)
    new = renamed_in(content)
    return line if new == content else json.dumps(new, separators=(",", ":"))


def _is_listed(case: Case, difference: Difference) -> bool:
    return any(
        fnmatchcase(case.name, entry.cases)
        and fnmatchcase(difference.where, entry.where)
        and GRAVITY[difference.kind] <= GRAVITY[entry.most]
        for entry in cases.LISTED
    )


def _samples(raw: Record, stored: Record, found: Record) -> Iterator[Difference]:
    """Line by line; one of other bytes is looked at column by column. Renamed columns may stand in another order."""
    if len(stored.samples) != len(found.samples):
        yield Difference("samples", len(stored.samples), len(found.samples), "value")
        return
    for number, (old, new) in enumerate(zip(stored.samples, found.samples, strict=True)):
        if old == new:
            continue
        seen = False
        for where, one, other in _pairs(json.loads(old), json.loads(new)):
            if _same(one, other):
                continue
            seen = True
            yield Difference(f"samples[{number}].{where}", one, other, "value" if where in VERDICT else "bytes")
        if not seen and old == raw.samples[number]:
            yield Difference(f"samples[{number}]", old, new, "bytes")


def _objects(stored: Any, found: Any) -> Iterator[Difference]:
    for where, one, other in _pairs(stored, found):
        if not _same(one, other):
            yield Difference(where, one, other, _kind(where, one, other))


def _kind(where: str, one: Leaf, other: Leaf) -> Kind:
    if isinstance(one, str) and isinstance(other, str) and _is_prose(where):
        return "wording" if Counter(NUMBER.findall(one)) == Counter(NUMBER.findall(other)) else "value"
    if isinstance(one, float) and isinstance(other, float) and math.isclose(one, other, rel_tol=ROUNDING):
        return "rounding"
    return "value"


def _is_prose(where: str) -> bool:
    return not PROSE.isdisjoint(re.split(r"[.\[\]]+", where))


def _elsewhere(case: Case, stored: Record, found: Record) -> Iterator[Difference]:
    """Discrete columns and, within wide bounds, the numbers of an output."""
    if isinstance(case, Evaluation):
        yield from _statuses(stored, found)
        for where, one, other in _pairs(stored.content, found.content):
            inner = re.sub(r"^result\.attacks\[\d+\]\.", "", where)
            patterns = SETTLED if inner == where else SETTLED_PER_ATTACK
            if any(fnmatchcase(inner, pattern) for pattern in patterns) and not _same(one, other):
                yield Difference(where, one, other, "value")
        return
    unsteady = (*case.unsteady, "jobs.*", "digests.*")
    for where, one, other in _pairs(stored.content, found.content):
        exempt = MISSING not in (one, other) and any(fnmatchcase(where, pattern) for pattern in unsteady)
        if not exempt and not _near(where, one, other):
            yield Difference(where, one, other, "value")


def _statuses(stored: Record, found: Record) -> Iterator[Difference]:
    """Rows, labels and clean predictions as they were; of the statuses one in 48 may differ, and at least one."""
    before, after = _last(stored), _last(found)
    if before.keys() != after.keys():
        yield Difference("samples", len(before), len(after), "value")
        return
    for row, old in before.items():
        for column in ("label", "clean"):
            if old[column] != after[row][column]:
                yield Difference(f"samples{list(row)}.{column}", old[column], after[row][column], "value")
    flips = [row for row in before if before[row]["status"] != after[row]["status"]]
    if len(flips) > max(1, len(before) // ONE_OF):
        for row in flips:
            yield Difference(f"samples{list(row)}.status", before[row]["status"], after[row]["status"], "value")


def _last(record: Record) -> dict[tuple[int, int], dict[str, Any]]:
    """The last record of every sample of every job: later passes over survivors write a sample again."""
    found, lines = {}, iter(record.samples)
    for job, count in enumerate(record.content["counts"]):
        for _ in range(count):
            sample = json.loads(next(lines))
            found[job, sample["index"]] = sample
    return found


def _near(where: str, one: Leaf, other: Leaf) -> bool:
    numbers = [v for v in (one, other) if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < 2:
        return _same(one, other) or _kind(where, one, other) == "wording"
    whole = all(isinstance(v, int) for v in numbers)
    return math.isclose(*numbers, rel_tol=0.05, abs_tol=2 if whole else 0.05)


def _same(one: Leaf, other: Leaf) -> bool:
    """Equal in type and value; NaN is NaN."""
    return type(one) is type(other) and (one == other or (one != one and other != other))


def _pairs(stored: Any, found: Any) -> Iterator[tuple[str, Leaf, Leaf]]:
    """The leaves of two objects by their places."""
    one, other = dict(_leaves(stored)), dict(_leaves(found))
    for where in dict.fromkeys([*one, *other]):
        yield where, one.get(where, MISSING), other.get(where, MISSING)


def _leaves(content: Any, where: str = "") -> Iterator[tuple[str, Leaf]]:
    """Leaves by place; an empty list or object is a leaf too."""
    if isinstance(content, Mapping) and content:
        for key, value in content.items():
            yield from _leaves(value, f"{where}.{key}" if where else str(key))
    elif isinstance(content, list) and content:
        for number, value in enumerate(content):
            yield from _leaves(value, f"{where}[{number}]")
    else:
        yield where, str(content) if isinstance(content, list | Mapping) else content
