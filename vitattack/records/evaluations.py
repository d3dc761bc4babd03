"""Stored results brought together as evaluations: those of one model on the same images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vitattack.core.errors import UsageError
from vitattack.records.result import Evaluation, Result


def subject(result: Result) -> tuple[Any, ...]:
    """The model and the images of a result; results of one subject have a worst case."""
    return result.job.model, result.job.weights.partition(" ")[0], images(result)


def images(result: Result) -> tuple[Any, ...]:
    """The images of a result: their digest and, since that is of pixels alone, which records there are."""
    return result.job.pixels, tuple(record.index for record in result.records)


def grouped(results: Sequence[Result]) -> list[Evaluation]:
    """An evaluation for every model and set of images; a result that is named twice counts once."""
    by_subject: dict[tuple[Any, ...], list[Result]] = {}
    for result in {result.folder or id(result): result for result in results}.values():
        by_subject.setdefault(subject(result), []).append(result)
    for each in by_subject.values():
        keys = [(result.job.attack, result.job.threat) for result in each]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice:
            raise UsageError(f"{twice[0]} at {twice[1]} is named twice, run with other settings: name one of the runs")
    return [Evaluation(tuple(each)) for each in by_subject.values()]
