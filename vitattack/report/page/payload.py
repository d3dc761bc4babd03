"""Everything that the script of the page draws from: names and figures as JSON, columns in a block beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from vitattack.core.words import on_terminal
from vitattack.data.labels.names import known_names
from vitattack.records.record import STATUSES
from vitattack.records.stats import Accuracy
from vitattack.report.overview.figures import Figure, Histograms, Intervals, Lines, Matrix, Stages
from vitattack.report.overview.overview import ImageSet, Overview
from vitattack.report.overview.run import ShownRun
from vitattack.report.page.packing import Packing
from vitattack.report.page.pictures import Strip


def payload(
    overview: Overview,
    figures: Sequence[Figure],
    classes: Sequence[str],
    pictures: Mapping[str, Mapping[int, Strip]],
    packing: Packing,
) -> dict[str, Any]:
    """The content of the page; without `classes`, names of classes are those that are known."""
    return {
        "statuses": STATUSES,
        "sets": [_images(images, classes or known_names(images.data), packing) for images in overview.sets],
        "figures": [_figure(figure) for figure in figures],
        "pictures": pictures,
    }


def json_for_page(content: Any) -> str:
    """JSON that no HTML parser takes for markup; texts are made safe to show."""
    text = json.dumps(_shown(content), separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return on_terminal(value)
    if isinstance(value, Mapping):
        return {on_terminal(str(name)): _shown(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def _images(images: ImageSet, classes: Sequence[str], packing: Packing) -> dict[str, Any]:
    return {
        "data": images.data,
        "n": images.n,
        "classes": list(classes),
        "index": packing.add(images.index),
        "label": packing.add(images.label),
        "runs": [_run(run, packing) for run in images.runs],
        "rows": [
            {
                "model": row.model,
                "threat": row.threat,
                "runs": [at for at, run in enumerate(images.runs) if any(run is own for own in row.runs)],
                "worst": _accuracy(row.worst),
            }
            for row in images.rows
        ],
    }


def _run(run: ShownRun, packing: Packing) -> dict[str, Any]:
    samples = run.samples
    columns = {
        "clean": samples.clean,
        "adversarial": samples.adversarial,
        "status": samples.status,
        "fragile": samples.fragile,
        "step": samples.step,
        "stage": samples.stage,
        "passes": samples.passes,
        "size": samples.size,
        "margin": samples.margin,
        "distance": samples.distance,
        **samples.moves,
    }
    return {
        "key": run.job.key,
        "model": run.job.model,
        "attack": run.attack,
        "threat": run.job.threat,
        "robust": _accuracy(run.robust),
        "clean": _accuracy(run.clean),
        "passes": run.forwards + run.backwards,
        "seconds": run.seconds,
        "stages": run.stages,
        "random": run.draws is not None,
        "columns": {name: packing.add(column) for name, column in columns.items()},
    }


def _accuracy(accuracy: Accuracy) -> list[float]:
    return [accuracy.accuracy, accuracy.low, accuracy.high, accuracy.correct]


def _figure(figure: Figure) -> dict[str, Any]:
    head = figure.head
    common = {"kind": head.kind, "title": head.title, "about": head.about, "note": head.note}
    match figure:
        case Lines():
            lines = [
                {"name": name, "x": curve.x, "y": curve.y, "low": curve.low, "high": curve.high}
                for name, curve in zip(figure.names, figure.curves, strict=True)
            ]
            shape = {"log": figure.logarithmic, "steps": figure.steps, "x": figure.x_label, "lines": lines}
            return {**common, "shape": "lines", **shape}
        case Intervals():
            return {**common, "shape": "intervals", "rows": [[name, *_accuracy(a)] for name, a in figure.rows]}
        case Stages():
            rows = [[stage.name, stage.tried, stage.broke, stage.passes] for stage in figure.stages]
            return {**common, "shape": "stages", "rows": rows}
        case Matrix():
            axes = {"rowLabel": figure.row_label, "columnLabel": figure.column_label}
            names = {"rows": figure.rows, "columns": figure.columns}
            return {**common, "shape": "matrix", **axes, **names, "values": figure.values, "texts": figure.texts}
        case Histograms():
            blocks = [{"block": b.block, "counts": b.counts, "verdict": b.verdict} for b in figure.blocks]
            return {**common, "shape": "histograms", "edges": figure.edges, "blocks": blocks}
