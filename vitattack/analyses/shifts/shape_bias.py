"""Decisions for the shape and for the texture of images where the two are in conflict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitattack.analyses.curves import bars_of
from vitattack.analyses.figure import Bars, Series
from vitattack.analyses.findings import Findings, Row
from vitattack.analyses.run import AnalysisRun, Model
from vitattack.analyses.shifts.published import published_table
from vitattack.analyses.shifts.questions import ShapeBias
from vitattack.analyses.tables import share_text, side_by_side
from vitattack.core.errors import UsageError
from vitattack.core.percent import percent
from vitattack.data.formats.layouts import CueConflict
from vitattack.data.labels.imagenet import CATEGORIES
from vitattack.records import stats
from vitattack.records.stats import Accuracy

ACCURACY, TEXTURE, BIAS = "shape accuracy", "texture accuracy", "shape bias"


@dataclass(frozen=True)
class Decisions:
    """Categories of the shape, of the texture and of the decision, image by image."""

    shapes: Sequence[int]
    textures: Sequence[int]
    decided: Sequence[int]

    def numbers(self) -> dict[str, Accuracy]:
        """Shape accuracy over all images; shape bias over conflicts decided for either."""
        every = [*zip(self.shapes, self.textures, self.decided, strict=True)]
        conflicts = [(s, t, d) for s, t, d in every if s != t]
        either = [d == s for s, t, d in conflicts if d in (s, t)]
        return {
            ACCURACY: stats.share(sum(s == d for s, _, d in every), len(every)),
            TEXTURE: stats.share(sum(t == d for _, t, d in conflicts), len(conflicts)),
            BIAS: stats.share(sum(either), len(either)),
        }

    def by_category(self) -> dict[str, Accuracy]:
        """The shape bias of the images of each shape."""
        found = {}
        for number, name in enumerate(CATEGORIES):
            at = [place for place, shape in enumerate(self.shapes) if shape == number]
            some = Decisions(
                *([values[place] for place in at] for values in (self.shapes, self.textures, self.decided))
            )
            found[name] = some.numbers()[BIAS]
        return found


def shape_bias(analysis: ShapeBias, run: AnalysisRun) -> Findings:
    """Decide every image by every model."""
    (text,) = analysis.data_opened(run.data_text or "", None)
    found = {name: _measured(run, name, model, text) for name, model in run.named}
    numbers = {name: each.numbers() for name, each in found.items()}
    by_category = {name: each.by_category() for name, each in found.items()}
    rows: list[Row] = [
        {"model": name, "shape": shape, "measure": measure, **accuracy.json(), "n": accuracy.n}
        for name in found
        for shape, measures in (("all", numbers[name]), *((k, {BIAS: a}) for k, a in by_category[name].items()))
        for measure, accuracy in measures.items()
    ]
    columns = {name: {key: _text(accuracy) for key, accuracy in each.items()} for name, each in numbers.items()}
    categories = {name: {key: _text(accuracy) for key, accuracy in each.items()} for name, each in by_category.items()}
    notes = [
        "shape accuracy: over all images; texture accuracy: where the texture is another category than the shape",
        "shape bias: among those, the share decided for the shape of all decided for either",
    ]
    tables = [
        side_by_side("Shape and texture, in % with 95 % intervals", "", [ACCURACY, TEXTURE, BIAS], columns, notes),
        side_by_side("Shape bias by category of the shape, in %", "shape", [*CATEGORIES], categories),
        published_table("Published shape accuracy", ["bhojanapalli-table3-cue-conflict"]),
    ]
    return run.findings(rows, tables, _figures(numbers, by_category), _remarks(numbers))


def _measured(run: AnalysisRun, name: str, model: Model, text: str) -> Decisions:
    prepared = run.open(model, text)
    source = prepared.images.source
    if not isinstance(source, CueConflict):
        raise UsageError(f"'{prepared.images.text}' says nothing of textures: use --data cue-conflict")

    def measure(x: Tensor, y: Tensor, rows: tuple[int, ...]) -> dict[str, Any]:
        with torch.no_grad():
            decided = prepared.victim(x).argmax(1)
        return {"shapes": y.tolist(), "textures": [source.textures[row] for row in rows], "decided": decided.tolist()}

    parts = run.over_batches(prepared, measure)
    return Decisions(*([value for part in parts for value in part[key]] for key in ("shapes", "textures", "decided")))


def _text(accuracy: Accuracy) -> str:
    return share_text(accuracy) if accuracy.n else ""


def _figures(
    numbers: Mapping[str, Mapping[str, Accuracy]], by_category: Mapping[str, Mapping[str, Accuracy]]
) -> list[Bars]:
    return [
        Bars("Shape and texture", "share", (ACCURACY, TEXTURE, BIAS), _series(numbers), percent=True),
        Bars(
            "Shape bias by category of the shape", "shape bias", tuple(CATEGORIES), _series(by_category), percent=True
        ),
    ]


def _series(numbers: Mapping[str, Mapping[str, Accuracy]]) -> tuple[Series, ...]:
    return tuple(
        bars_of(name, [accuracy if accuracy.n else None for accuracy in each.values()])
        for name, each in numbers.items()
    )


def _remarks(numbers: Mapping[str, Mapping[str, Accuracy]]) -> list[str]:
    return [
        f"{name}: {percent(each[BIAS].accuracy)} of {each[BIAS].n} decisions for shape or texture are for the shape"
        for name, each in numbers.items()
        if each[BIAS].n
    ]
