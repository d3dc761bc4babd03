"""Runs against each other on the same images: paired differences, who flipped, and what each costs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from vitattack.core.errors import UsageError
from vitattack.core.shown import Shown
from vitattack.core.words import printable
from vitattack.records import draws, stats
from vitattack.records.record import SampleRecord
from vitattack.records.result import Result, label
from vitattack.records.stats import Accuracy, Gap, Paired

FIELDS = ("model", "attack", "threat")
WORST = "worst case"


@dataclass(frozen=True)
class Side:
    """One of the things that are compared: a run, or all runs of a model, with an attack or in a store."""

    name: str
    results: tuple[Result, ...]


@dataclass(frozen=True)
class Column:
    """What one side says about every image under one attack, or under the worst of several."""

    side: str
    results: tuple[Result, ...] = field(repr=False)

    @cached_property
    def accuracy(self) -> Accuracy:
        if len(self.results) == 1:
            return self.results[0].robust
        return stats.worst_case([result.records for result in self.results])

    @property
    def clean(self) -> Accuracy:
        return self.results[0].clean

    @property
    def passes(self) -> float:
        """Forwards and backwards of an attacked image, of all attacks together."""
        return sum(sum(result.mean_passes) for result in self.results)

    @property
    def seconds(self) -> float:
        return sum(result.seconds for result in self.results)

    @cached_property
    def robust(self) -> dict[int, bool]:
        """Whether every attack failed, by image."""
        columns = [{r.index: r.status == "robust" for r in result.records} for result in self.results]
        return {index: all(column[index] for column in columns) for index in columns[0]}

    @cached_property
    def shares(self) -> dict[int, float] | None:
        """Of a random model, the share of draws in which each image is robust."""
        if len(self.results) > 1 or self.results[0].draws is None:
            return None
        return {record.index: _share(record) for record in self.results[0].records}

    def json(self) -> dict[str, Any]:
        runs = [str(result.folder) for result in self.results if result.folder]
        cost = {"passes": round(self.passes, 3), "seconds": round(self.seconds, 3), "runs": runs}
        return {"side": self.side, "clean": self.clean.json(), "robust": self.accuracy.json(), **cost}


def _share(record: SampleRecord) -> float:
    bits = draws.adversarial_draws(record)
    if record.status == "invalid" or bits is None:
        return float(record.status == "robust")
    return bits.count("1") / len(bits)


@dataclass(frozen=True)
class Contrast:
    """One side against the first, image by image; `lost` images are robust in the first alone, `won` ones in the other."""

    first: Column
    second: Column

    @cached_property
    def paired(self) -> Paired:
        return stats.paired_test(self.first.robust, self.second.robust)

    @cached_property
    def lost(self) -> tuple[int, ...]:
        return tuple(i for i, robust in self.first.robust.items() if robust and not self.second.robust[i])

    @cached_property
    def won(self) -> tuple[int, ...]:
        return tuple(i for i, robust in self.second.robust.items() if robust and not self.first.robust[i])

    @cached_property
    def both(self) -> int:
        return sum(robust and self.second.robust[i] for i, robust in self.first.robust.items())

    @property
    def neither(self) -> int:
        return self.paired.n - self.both - len(self.lost) - len(self.won)

    @cached_property
    def gap(self) -> Gap:
        """The robust accuracy of the second minus that of the first."""
        if self.first.shares is not None or self.second.shares is not None:
            order = list(self.first.robust)
            rows = [column.shares or column.robust for column in (self.first, self.second)]
            return stats.paired_gap_of_shares(*([float(row[i]) for i in order] for row in rows))
        return stats.paired_gap(self.both, len(self.lost), len(self.won), self.neither)

    def json(self) -> dict[str, Any]:
        difference = {"difference": self.gap.difference, "low": self.gap.low, "high": self.gap.high}
        counts = {
            "both": self.both,
            "only_first": len(self.lost),
            "only_second": len(self.won),
            "neither": self.neither,
        }
        flipped = {"lost": list(self.lost), "won": list(self.won)}
        return {"side": self.second.side, **difference, **counts, "p_value": self.paired.p_value, **flipped}


@dataclass(frozen=True)
class Row:
    """All sides under one attack; the first one is the reference."""

    name: str
    columns: tuple[Column, ...]

    @property
    def first(self) -> Result:
        """A result of the reference, which tells the images of all."""
        return self.columns[0].results[0]

    @cached_property
    def contrasts(self) -> tuple[Contrast, ...]:
        return tuple(Contrast(self.columns[0], other) for other in self.columns[1:])


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """Two sides or more on the same images, row by row."""

    TABLES = "vitattack.report.comparison:comparison_tables"

    title: str
    sides: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        told = [
            f"{c.second.side} {100 * c.gap.difference:+.1f} (p = {c.paired.p_value:.2g})"
            for c in self.rows[-1].contrasts
        ]
        return f"Comparison({self.title}: {self.rows[-1].name}, {', '.join(told)})"

    @cached_property
    def doubts(self) -> tuple[str, ...]:
        """The doubts about every run, under the name of its side."""
        columns = [column for row in self.rows for column in row.columns]
        told = [f"{c.side}: {doubt}" for c in columns for result in c.results for doubt in result.doubts]
        return tuple(dict.fromkeys(told))

    def json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "sides": list(self.sides),
            "rows": [
                {
                    "row": row.name,
                    "data": row.first.job.data,
                    "n": row.first.n,
                    "columns": [column.json() for column in row.columns],
                    "contrasts": [contrast.json() for contrast in row.contrasts],
                }
                for row in self.rows
            ],
            "notes": list(self.notes),
            "doubts": list(self.doubts),
        }


def compared(sides: Sequence[Side]) -> Comparison:
    """The comparison of all sides with the first, over the attacks, models and budgets that they share."""
    if len(sides) < 2:
        raise UsageError("a comparison needs two sides: name another run, model, attack or store")
    names = _names(sides)
    shared = _shared_fields(sides)
    matched = [_by_key(side, shared) for side in sides]
    keys = [key for key in matched[0] if all(key in each for each in matched)]
    if not keys:
        raise UsageError(_nothing_shared(sides, names, shared))
    rows, strangers, resized = [], [], False
    for key in keys:
        chosen = _on_the_same_images([each[key] for each in matched])
        if chosen is None:
            strangers.append(key)
            continue
        resized = resized or len({result.job.pixels for result in chosen}) > 1
        rows.append(Row(_row_name(key, shared, keys), tuple(map(Column, names, ((each,) for each in chosen)))))
    if not rows:
        raise UsageError(_other_images([each[keys[0]][0] for each in matched], names))
    images = {(row.first.job.data, row.first.n) for row in rows}
    if len(images) > 1:
        rows = [replace(row, name=f"{row.name} {row.first.job.data}".removeprefix("robust ")) for row in rows]
    rows += _worst_rows(rows, names, shared)
    notes = [f"not compared, since their images differ: {len(strangers)} of {len(keys)} pairs"] if strangers else []
    if resized:
        notes.append("the same pictures, prepared differently for each model")
    counts = sorted({n for _, n in images})
    n = f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]}"
    data = [rows[0].first.job.data] if len(images) == 1 else []
    title = " | ".join([" against ".join(names), *_common(rows), *data, n])
    return Comparison(title, names, tuple(rows), tuple(notes))


def _names(sides: Sequence[Side]) -> tuple[str, ...]:
    """A name for every side; equal ones are numbered."""
    texts = [side.name for side in sides]
    seen: Counter[str] = Counter()
    names = []
    for text in texts:
        seen[text] += 1
        names.append(f"{text} ({seen[text]})" if texts.count(text) > 1 else text)
    return tuple(names)


def _shared_fields(sides: Sequence[Side]) -> tuple[str, ...]:
    """The fields that runs of two sides have to share to be compared: all but those in which the sides as such differ."""

    def apart(name: str) -> bool:
        values = [{getattr(result.job, name) for result in side.results} for side in sides]
        return all(len(each) == 1 for each in values) and len(set.union(*values)) > 1

    return tuple(name for name in FIELDS if not apart(name))


Key = tuple[str, ...]


def _by_key(side: Side, shared: Sequence[str]) -> dict[Key, list[Result]]:
    found: dict[Key, list[Result]] = {}
    for result in side.results:
        found.setdefault(tuple(getattr(result.job, name) for name in shared), []).append(result)
    return found


def _on_the_same_images(choices: Sequence[Sequence[Result]]) -> list[Result] | None:
    """A result of every side, all of the same images: of the first such as the sides order them."""
    for first in sorted(choices[0], key=lambda result: -result.n):
        partners = [next((other for other in each if same_images(first, other)), None) for each in choices[1:]]
        chosen = [first, *(partner for partner in partners if partner is not None)]
        if len(chosen) == len(choices):
            return chosen
    return None


def same_images(one: Result, two: Result) -> bool:
    """Whether two results are of the same images: pixel by pixel, or the same rows of a set prepared in two ways."""
    if [(r.index, r.label) for r in one.records] != [(r.index, r.label) for r in two.records]:
        return False
    if one.job.pixels == two.job.pixels:
        return True
    about = [result.provenance.get("protocol", {}) for result in (one, two)]
    prepared = [each.get("transform") for each in about]
    rows = [(result.job.data, each.get("rows_sha256")) for result, each in zip((one, two), about, strict=True)]
    return rows[0] == rows[1] and None not in prepared and prepared[0] != prepared[1]


def _row_name(key: Key, shared: Sequence[str], keys: Sequence[Key]) -> str:
    """The fields of a row that differ from those of another row."""
    varied = [len({each[at] for each in keys}) > 1 for at in range(len(shared))]
    texts = [label(key[at]) if shared[at] == "attack" else key[at] for at in range(len(shared)) if varied[at]]
    return " ".join(texts) or "robust"


def _worst_rows(rows: Sequence[Row], names: Sequence[str], shared: Sequence[str]) -> list[Row]:
    """The worst case over the attacks of each model and budget that has several."""
    if "attack" not in shared:
        return []
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.first.job.model, row.first.job.threat, row.first.job.pixels), []).append(row)
    found = []
    for (model, threat, pixels), members in groups.items():
        if len(members) > 1 and all(each.first.n == members[0].first.n for each in members):
            texts = [model] * ("model" in shared and len({key[0] for key in groups}) > 1)
            texts += [threat] * ("threat" in shared and len({key[1] for key in groups}) > 1)
            texts += [members[0].first.job.data] * (len({key[2] for key in groups}) > 1 and bool(pixels))
            sides = zip(names, zip(*(row.columns for row in members), strict=True), strict=True)
            columns = tuple(Column(name, tuple(c.results[0] for c in columns)) for name, columns in sides)
            found.append(Row(" ".join([WORST, *texts]), columns))
    return found


def _common(rows: Sequence[Row]) -> list[str]:
    """Texts that all compared runs have in common."""
    jobs = [result.job for row in rows for column in row.columns for result in column.results]
    pick: Mapping[str, Callable[[str], str]] = {"model": str, "attack": label, "threat": str}
    values = [(name, {getattr(job, name) for job in jobs}) for name in FIELDS]
    return [pick[name](next(iter(each))) for name, each in values if len(each) == 1]


def _nothing_shared(sides: Sequence[Side], names: Sequence[str], shared: Sequence[str]) -> str:
    first = sides[0].results[0].job
    command = f"run {label(first.attack)} at {first.threat} on both"
    return f"{printable(' and '.join(names))} have no run of the same {' and '.join(shared)}: {command}"


def _other_images(results: Sequence[Result], names: Sequence[str]) -> str:
    told = ", ".join(f"{name} has {result.n} of {result.job.data}" for name, result in zip(names, results, strict=True))
    return f"the images are not the same ({printable(told, 300)}): run both on the same data and rows"


def significance(tests: int) -> str | None:
    """What to hold a single p value against where several tests are made at once."""
    if tests < 2:
        return None
    return f"{tests} tests: a single one is significant at 5 % if p is below {_floor(0.05 / tests)} (Bonferroni)"


def _floor(value: float) -> float:
    digits = 1 - math.floor(math.log10(value))
    return float(math.floor(value * 10**digits) / 10**digits)
