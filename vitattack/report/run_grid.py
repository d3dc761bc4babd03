"""Stored runs as a table for a paper: models against attacks and budgets, on the same images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.core.table import Table
from vitattack.records.evaluations import grouped, images
from vitattack.records.result import Evaluation, Result, label
from vitattack.records.stats import Accuracy
from vitattack.report.grid import Layout, measured_text

AXES = ("model", "attack", "threat")
CLEAN, WORST, UNION = "clean", "worst case", "union"


@dataclass(frozen=True)
class RunNumber:
    """An accuracy with its place on each axis; clean accuracy has no budget of its own."""

    model: str
    attack: str
    threat: str
    accuracy: Accuracy


def run_grid(
    results: Sequence[Result], rows: Sequence[str], columns: Sequence[str], *, intervals: bool = True
) -> list[Table]:
    """The table of some runs, wide and narrow; of runs on several sets of images, those on the one with most runs."""
    _check_axes(rows, columns)
    if not results:
        raise UsageError("no finished run is left to tabulate: name others, or drop a filter")
    chosen = _on_one_set(results)
    evaluations = grouped(chosen)
    opposite = "threat" in (columns if "attack" in rows else rows)  # to the attacks, among which clean stands once
    attacks = {
        threat: {r.job.attack for r in chosen if r.job.threat == threat} for threat in {r.job.threat for r in chosen}
    }
    numbers = [number for each in evaluations for number in _numbers(each, attacks, repeat_clean=opposite)]
    axes = {name: lambda number, name=name: str(getattr(number, name)) for name in AXES}
    layout = Layout(numbers, rows, columns, axes, lambda number: number.accuracy)
    job, n = chosen[0].job, chosen[0].n
    threats = ", ".join(dict.fromkeys(result.job.threat for result in chosen))
    notes = ["a cell: robust accuracy in %" + " (95 % interval)" * intervals]
    if len(chosen) < len(results):
        notes.append(f"left out: {len(results) - len(chosen)} runs on other images")
    notes += [f"doubt: {each.job.model}: {doubt}" for each in evaluations for doubt in each.doubts]

    def table(*, narrow: bool) -> Table:
        return layout.table(
            f"{threats} | {job.data} | n = {n}",
            notes,
            lambda number: "" if number is None else measured_text(number.accuracy, interval=intervals, narrow=narrow),
            narrow=narrow,
        )

    return [table(narrow=False), table(narrow=True)]


def _check_axes(rows: Sequence[str], columns: Sequence[str]) -> None:
    for axis in (*rows, *columns):
        if axis not in AXES:
            raise UsageError(did_you_mean("axis", axis, AXES))
    if sorted((*rows, *columns)) != sorted(AXES):
        raise UsageError(
            f"{', '.join(AXES)} go into rows or columns, each once: write --rows model --columns threat,attack"
        )


def _on_one_set(results: Sequence[Result]) -> list[Result]:
    """The results on the images that most of them are on."""
    keys = [images(result) for result in results]
    most = max(keys, key=keys.count)
    return [result for result, key in zip(results, keys, strict=True) if key == most]


def _numbers(evaluation: Evaluation, attacks: Mapping[str, set[str]], *, repeat_clean: bool) -> list[RunNumber]:
    """All accuracies of a model; no worst case over fewer attacks than other models have met, which is another number."""
    model = evaluation.job.model
    found = [
        RunNumber(model, CLEAN, threat, evaluation.clean) for threat in (evaluation.threats if repeat_clean else [""])
    ]
    for threat in evaluation.threats:
        under = evaluation.under(threat)
        found += [RunNumber(model, label(result.job.attack), threat, result.robust) for result in under.results]
        if len(under.results) == len(attacks[threat]) > 1:
            found.append(RunNumber(model, WORST, threat, under.worst_case))
    whole = {t: {r.job.attack for r in evaluation.results if r.job.threat == t} for t in evaluation.threats}
    if evaluation.union and whole == attacks:
        found.append(RunNumber(model, WORST, UNION, evaluation.union))
    return found
