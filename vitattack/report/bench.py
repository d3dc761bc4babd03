"""A benchmark in the shape of the paper's table, number by number against the published ones, and by size of model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitattack.bench.compare import Front, Shown, fronts, shown
from vitattack.bench.run.run import Matrix
from vitattack.bench.schema import CLEAN
from vitattack.core.table import Table

AXIS: Mapping[str, Callable[[Shown], str]] = {
    "model": lambda one: one.model,
    "attack": lambda one: one.attack,
    "threat": lambda one: one.threat,
    "seed": lambda one: "" if one.seed is None else f"seed {one.seed}",
}
MEASURED = "a cell: measured % (95 % interval)"
KEY = (
    f"{MEASURED}, then [published], measured minus published, and whether sampling explains that (in, out); "
    "a number in brackets alone was not run here"
)
WIDEST_NAME = 40


def tables(matrix: Matrix, width: int | None = None) -> list[Table]:
    """What a person reads. On a terminal of `width` characters a cell has two lines and wide tables come in pieces."""
    cells = shown(matrix)
    found = [
        _shaped(matrix, cells, " " if width is None else "\n"),
        *_over_seeds(matrix, cells),
        *_compared(matrix, cells),
        *(_front(front) for front in fronts(matrix, cells)),
        *_failures(matrix),
    ]
    return found if width is None else [piece for table in found for piece in _pieces(table, width)]


def _pieces(table: Table, width: int) -> list[Table]:
    """A table cut between columns into ones that fit; each has the names of the rows, the last one the notes."""
    columns = list(zip(table.columns, *table.rows, strict=True))
    wide = [max(len(line) for cell in column for line in cell.splitlines() or [""]) + 2 for column in columns]
    names = sum(min(size, WIDEST_NAME) for size in wide[: table.left])
    groups: list[list[int]] = [[]]
    room = 0
    for place in range(table.left, len(columns)):
        if groups[-1] and room + wide[place] > width - names:
            groups.append([])
            room = 0
        groups[-1].append(place)
        room += wide[place]
    found = []
    for number, group in enumerate(groups):
        kept = [*range(table.left), *group]
        title = table.title if len(groups) == 1 else f"{table.title} ({number + 1} of {len(groups)})"
        rows = [tuple(row[place] for place in kept) for row in table.rows]
        notes = table.notes if number + 1 == len(groups) else ()
        found.append(replace(table, title=title, columns=[table.columns[p] for p in kept], rows=rows, notes=notes))
    return found


def _shaped(matrix: Matrix, cells: Sequence[Shown], between: str) -> Table:
    """The table of the paper."""
    bench = matrix.bench
    down, across = bench.rows, bench.columns
    at: dict[tuple[tuple[str, ...], tuple[str, ...]], Shown] = {}
    for one in _spread(cells, down, across):
        at.setdefault((tuple(AXIS[a](one) for a in down), tuple(AXIS[a](one) for a in across)), one)
    names = list(dict.fromkeys(name for name, _ in at))
    heads = list(dict.fromkeys(head for _, head in at))
    once = {axis for place, axis in enumerate(across) if len({head[place] for head in heads if head[place]}) < 2}
    columns = [_head(head, across, once if once < set(across) else set()) for head in heads]
    rows = [(*name, *(_cell(at.get((name, head)), between) for head in heads)) for name in names]
    notes = [KEY if bench.reference else MEASURED, *_notes(matrix, cells)]
    return Table(f"{bench.title} | {_under(matrix)}", (*down, *columns), rows, notes, left=len(down))


def _spread(cells: Sequence[Shown], down: Sequence[str], across: Sequence[str]) -> list[Shown]:
    """Clean numbers stand once beside the attacks, and again for every threat and seed on the other side of the table."""
    opposite = [axis for axis in ("threat", "seed") if axis in (across if "attack" in down else down)]
    found: list[Shown] = []
    for one in cells:
        if one.attack != CLEAN or not opposite:
            found.append(one)
            continue
        own = [other for other in cells if other.model == one.model and other.attack != CLEAN]
        seen: dict[tuple[Any, ...], Shown] = {}
        for other in own:
            changed = {axis: getattr(other, axis) for axis in opposite}
            seen.setdefault(tuple(changed.values()), replace(one, **changed))
        found += list(seen.values()) or [one]
    return found


def _head(head: Sequence[str], across: Sequence[str], once: set[str]) -> str:
    """The name of a column; what is the same everywhere stands in the title."""
    kept = [value for axis, value in zip(across, head, strict=True) if value and axis not in once]
    return " ".join(kept) or next((value for value in head if value), "")


def _under(matrix: Matrix) -> str:
    bench = matrix.bench
    counted = sorted({measured.n for measured in matrix.cells if measured.n})
    n = f"n = {counted[0]}" if len(counted) == 1 else f"n = {counted[0]} to {counted[-1]}" if counted else "not run"
    seeds = f"seed{'s' if len(bench.seeds) > 1 else ''} {', '.join(map(str, bench.seeds))}"
    return " | ".join([", ".join(bench.threats), bench.data, n, seeds])


def _cell(one: Shown | None, between: str) -> str:
    if one is None:
        return ""
    published = f"[{one.published.value:.2f}]" if one.published else ""
    if one.measured is None:
        return published if one.status == "published" else f"{one.status} {published}".strip()
    text = f"{100 * one.measured.accuracy:.1f} ({100 * one.measured.low:.1f}-{100 * one.measured.high:.1f})"
    return text if one.gap is None else f"{text}{between}{published} {_signed(one)} {_verdict(one)}"


def _signed(one: Shown) -> str:
    return f"{100 * one.gap.difference:+.1f}" if one.gap else ""


def _verdict(one: Shown) -> str:
    return "" if one.gap is None else "in" if one.gap.inside else "out"


def _notes(matrix: Matrix, cells: Sequence[Shown]) -> list[str]:
    bench = matrix.bench
    notes = [f"published: {bench.source}"] if bench.reference else []
    others = dict.fromkeys(r.source for r in bench.reference if r.source and r.source != bench.source)
    notes += [f"published: {source}" for source in others]
    notes += [bench.notes] if bench.notes else []
    doubts = dict.fromkeys(
        f"doubt: {one.cell.cell.label}, {one.cell.cell.attack_label}: {doubt}"
        for one in cells
        if one.attack != CLEAN
        for doubt in one.cell.content.get("doubts", ())
    )
    return [*notes, *doubts]


def _compared(matrix: Matrix, cells: Sequence[Shown]) -> list[Table]:
    """Every number that was both measured and published."""
    rows = []
    several, exact = len(matrix.bench.seeds) > 1, False
    for one in cells:
        if one.gap is None or one.measured is None or one.published is None:
            continue
        measured = f"{100 * one.measured.accuracy:.1f}", f"{100 * one.measured.low:.1f} - {100 * one.measured.high:.1f}"
        published = f"{one.published.value:.2f}", "?" if one.published.n is None else str(one.published.n)
        error = f"{100 * one.gap.low:+.1f} to {100 * one.gap.high:+.1f}"
        place = (one.model, one.attack, one.threat, *([AXIS["seed"](one)] if several else []))
        exact = exact or one.published.n is None
        rows.append((*place, *measured, str(one.measured.n), *published, _signed(one), error, _verdict(one)))
    if not rows:
        return []
    inside = sum(row[-1] == "in" for row in rows)
    note = "difference: measured minus published, with its 95 % interval (Newcombe) from both samplings"
    alone = "; without a published n (?) from ours alone" if exact else ""
    left = ("model", "attack", "threat", *(["seed"] if several else []))
    columns = (*left, "measured", "95 %", "n", "published", "n", "difference", "95 %", "sampling")
    title = f"{matrix.bench.title} | {inside} of {len(rows)} differences inside the sampling error"
    return [Table(title, columns, rows, [note + alone], left=len(left))]


def _over_seeds(matrix: Matrix, cells: Sequence[Shown]) -> list[Table]:
    """Mean, lowest and highest of several seeds."""
    if len(matrix.bench.seeds) < 2:
        return []
    found: dict[tuple[str, str, str], list[float]] = {}
    for one in cells:
        if one.seed is not None and one.measured is not None:
            found.setdefault((one.model, one.attack, one.threat), []).append(100 * one.measured.accuracy)
    rows = [
        (*place, f"{sum(values) / len(values):.2f}", f"{min(values):.2f}", f"{max(values):.2f}", str(len(values)))
        for place, values in found.items()
    ]
    columns = ("model", "attack", "threat", "mean", "lowest", "highest", "seeds")
    return [Table("robust accuracy over seeds, in %", columns, rows, left=3)] if rows else []


def _front(front: Front) -> Table:
    """Who is most robust for its size."""
    rows = [
        (
            point.model,
            f"{point.parameters / 1e6:.1f}",
            f"{point.flops / 1e9:.2f}",
            "" if point.clean is None else f"{100 * point.clean:.1f}",
            f"{100 * point.robust:.1f}" if point.measured else f"[{100 * point.robust:.2f}]",
            "front" if point.smallest else "",
            "front" if point.cheapest else "",
        )
        for point in front.points
    ]
    columns = ("model", "M parameters", "GFLOPs", "clean", "robust", "for parameters", "for FLOPs")
    notes = ["FLOPs of one image: a multiplication and an addition are two; a number in brackets is published"]
    return Table(f"robust accuracy against size | {front.attack} | {front.threat}", columns, rows, notes)


def _failures(matrix: Matrix) -> list[Table]:
    rows = [(measured.cell.name, measured.error) for measured in matrix.failed]
    return [Table(f"{len(rows)} failed", ("cell", "why"), rows, left=2)] if rows else []


def numbers(matrix: Matrix) -> Table:
    """A row per number, shares in [0,1]: the form for other programs."""
    names = ("measured", "low", "high", "n", "published", "published_n", "difference", "difference_low")
    columns = ("model", "attack", "threat", "seed", "status", *names, "difference_high", "inside", "source")
    rows = []
    for one in content(matrix)["cells"]:
        rows.append(tuple(_plain(one[column]) for column in columns))
    return Table(matrix.bench.title, columns, rows, _notes(matrix, shown(matrix)), left=5)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def content(matrix: Matrix) -> dict[str, Any]:
    """The JSON of a benchmark, accuracies in [0,1]; the clean accuracy of a model is a cell with the attack `clean`."""
    cells = shown(matrix)
    found = []
    for one in cells:
        accuracy, published, gap = one.measured, one.published, one.gap
        found.append(
            {
                "model": one.model,
                "attack": one.attack,
                "threat": one.threat or None,
                "measured": accuracy.accuracy if accuracy else None,
                "low": accuracy.low if accuracy else None,
                "high": accuracy.high if accuracy else None,
                "published": round(published.value / 100, 6) if published else None,
                "source": (published.source or matrix.bench.source) if published else None,
                "n": accuracy.n if accuracy else None,
                "status": one.status,
                "seed": one.seed,
                "published_n": published.n if published else None,
                "difference": gap.difference if gap else None,
                "difference_low": gap.low if gap else None,
                "difference_high": gap.high if gap else None,
                "inside": gap.inside if gap else None,
                "id": one.cell.cell.model or None,
                "text": one.cell.cell.attack if one.attack != CLEAN else None,
                "error": one.cell.error or None,
                "doubts": list(one.cell.content.get("doubts", ())),
                "run": str(one.cell.folder) if one.cell.folder else None,
            }
        )
    return {
        "schema": 1,
        "file": matrix.bench.path,
        "title": matrix.bench.title,
        "data": matrix.bench.data,
        "cells": found,
        "front": [
            {"attack": f.attack, "threat": f.threat, "points": [p._asdict() for p in f.points]}
            for f in fronts(matrix, cells)
        ],
        "counts": dict(matrix.counts),
    }


def save(matrix: Matrix, folder: Path) -> list[Path]:
    """Every form in a folder: NAME.md, .tex, .csv, .json, and NAME.parquet with the record of every sample."""
    from vitattack.report.sample_parquet import write

    folder.mkdir(parents=True, exist_ok=True)
    shapes = tables(matrix)
    texts = {
        "md": "\n".join(table.markdown() for table in shapes),
        "tex": "\n".join(table.latex() for table in shapes),
        "csv": numbers(matrix).csv(),
        "json": json.dumps(content(matrix), indent=2) + "\n",
    }
    paths = []
    for ending, text in texts.items():
        paths.append(folder / f"{matrix.bench.name}.{ending}")
        paths[-1].write_text(text)
    paths.append(folder / f"{matrix.bench.name}.parquet")
    write(matrix, paths[-1])
    return paths
