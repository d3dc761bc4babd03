"""Tables of a benchmark: in the layout of the paper, number by number against published ones, and by model size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from vitattack.bench.compare import ComparedNumber, compared_numbers, worst_cases
from vitattack.bench.fronts import SizeFront, size_fronts
from vitattack.bench.run.results import BenchmarkResult
from vitattack.bench.schema import CLEAN, WORST_CASE
from vitattack.core.percent import span
from vitattack.core.table import Table
from vitattack.report.grid import Layout, fitted, measured_text, pieces

AXIS_LABEL: Mapping[str, Callable[[ComparedNumber], str]] = {
    "model": lambda number: number.model,
    "attack": lambda number: number.attack,
    "threat": lambda number: number.threat,
    "seed": lambda number: "" if number.seed is None else f"seed {number.seed}",
}
MEASURED = "a cell: measured % (95 % interval)"
KEY = (
    f"{MEASURED}, then [published], measured minus published, and whether sampling explains that (in, out); "
    "a number in brackets alone was not run here"
)


def bench_tables(results: BenchmarkResult, width: int | None = None, *, intervals: bool = True) -> list[Table]:
    """All tables; for a terminal of `width` characters cells have two lines, or more if need be; the widest come in pieces."""
    numbers = compared_numbers(results)
    worst = worst_cases(results)
    models = dict.fromkeys(number.model for number in numbers)
    shown = [number for model in models for number in (*numbers, *worst) if number.model == model]
    tables = [
        *_over_seeds(results, shown),
        *_differences(results, numbers),
        *map(_size_front, size_fronts(results, numbers)),
        *_failures(results),
    ]
    layout = _layout(results, shown, " " if width is None else "\n", intervals)
    if width is None:
        return [layout, *tables]
    main = fitted(layout, _layout(results, shown, "\n", intervals, narrow=True), width)
    return [*main, *(piece for table in tables for piece in pieces(table, width))]


def _layout(
    results: BenchmarkResult, numbers: Sequence[ComparedNumber], between: str, intervals: bool, *, narrow: bool = False
) -> Table:
    """The table in the layout that the file asks for; `between` separates measured and published numbers."""
    bench = results.bench
    shown = _repeat_clean(numbers, bench.rows, bench.columns)
    layout = Layout(shown, bench.rows, bench.columns, AXIS_LABEL, lambda number: number.measured)
    measured = MEASURED if intervals else "a cell: measured %"
    notes = [KEY.replace(MEASURED, measured) if bench.reference else measured, *bench_notes(results, numbers)]
    return layout.table(
        f"{bench.title} | {_conditions(results)}",
        notes,
        lambda number: _cell(number, between, intervals, narrow=narrow),
        narrow=narrow,
    )


def _repeat_clean(
    numbers: Sequence[ComparedNumber], rows: Sequence[str], columns: Sequence[str]
) -> list[ComparedNumber]:
    """Clean numbers repeated for each threat and seed on the side of the table opposite to the attacks."""
    opposite = [axis for axis in ("threat", "seed") if axis in (columns if "attack" in rows else rows)]
    repeated: list[ComparedNumber] = []
    for number in numbers:
        if number.attack != CLEAN or not opposite:
            repeated.append(number)
            continue
        copies: dict[tuple[str, int | None], ComparedNumber] = {}
        for other in numbers:
            if other.model == number.model and other.attack != CLEAN:
                threat = other.threat if "threat" in opposite else number.threat
                seed = other.seed if "seed" in opposite else number.seed
                copies.setdefault((threat, seed), replace(number, threat=threat, seed=seed))
        repeated += list(copies.values()) or [number]
    return repeated


def _conditions(results: BenchmarkResult) -> str:
    bench = results.bench
    counts = sorted({result.n for result in results.cells if result.n})
    n = f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]}" if counts else "not run"
    seeds = f"seed{'s' if len(bench.seeds) > 1 else ''} {', '.join(map(str, bench.seeds))}"
    return " | ".join([", ".join(bench.threats), bench.data, n, seeds])


def _cell(number: ComparedNumber | None, between: str, intervals: bool, *, narrow: bool) -> str:
    if number is None:
        return ""
    published = f"[{number.published.value:.2f}]" if number.published else ""
    if number.measured is None:
        return published if number.status == "published" else f"{number.status} {published}".strip()
    text = measured_text(number.measured, interval=intervals, narrow=narrow)
    if number.gap is None:
        return text
    return f"{text}{between}{published}{between if narrow else ' '}{_difference(number)} {_verdict(number)}"


def _difference(number: ComparedNumber) -> str:
    return f"{100 * number.gap.difference:+.1f}" if number.gap else ""


def _verdict(number: ComparedNumber) -> str:
    return "" if number.gap is None else "in" if number.gap.inside else "out"


def bench_notes(results: BenchmarkResult, numbers: Sequence[ComparedNumber]) -> list[str]:
    """Sources of the published numbers, notes of the file, and doubts about results."""
    bench = results.bench
    notes = [f"published: {bench.source}"] if bench.reference else []
    others = dict.fromkeys(r.source for r in bench.reference if r.source and r.source != bench.source)
    notes += [f"published: {source}" for source in others]
    notes += [bench.notes] if bench.notes else []
    doubts = dict.fromkeys(
        f"doubt: {number.model}, {number.attack}: {doubt}"
        for number in numbers
        if number.attack not in (CLEAN, WORST_CASE)
        for doubt in number.result.content.get("doubts", ())
    )
    return [*notes, *doubts]


def _differences(results: BenchmarkResult, numbers: Sequence[ComparedNumber]) -> list[Table]:
    """All numbers that were both measured and published."""
    rows = []
    several_seeds, unknown_n = len(results.bench.seeds) > 1, False
    for number in numbers:
        gap, ours, theirs = number.gap, number.measured, number.published
        if gap is None or ours is None or theirs is None:
            continue
        place = (number.model, number.attack, number.threat, *([AXIS_LABEL["seed"](number)] if several_seeds else []))
        measured = f"{100 * ours.accuracy:.1f}", span(ours.low, ours.high), str(ours.n)
        published = f"{theirs.value:.2f}", "?" if theirs.n is None else str(theirs.n)
        interval = span(gap.low, gap.high, " to ", signed=True)
        unknown_n = unknown_n or theirs.n is None
        rows.append((*place, *measured, *published, _difference(number), interval, _verdict(number)))
    if not rows:
        return []
    inside = sum(row[-1] == "in" for row in rows)
    note = "difference: measured minus published, with its 95 % interval (Newcombe) from both samplings"
    exception = "; without a published n (?) from ours alone" if unknown_n else ""
    left = ("model", "attack", "threat", *(["seed"] if several_seeds else []))
    columns = (*left, "measured", "95 %", "n", "published", "n", "difference", "95 %", "sampling")
    title = f"{results.bench.title} | {inside} of {len(rows)} differences inside the sampling error"
    return [Table(title, columns, rows, [note + exception], left=len(left))]


def _over_seeds(results: BenchmarkResult, numbers: Sequence[ComparedNumber]) -> list[Table]:
    """Mean, lowest and highest robust accuracy over several seeds."""
    if len(results.bench.seeds) < 2:
        return []
    by_cell: dict[tuple[str, str, str], list[float]] = {}
    for number in numbers:
        if number.seed is not None and number.measured is not None:
            cell = (number.model, number.attack, number.threat)
            by_cell.setdefault(cell, []).append(100 * number.measured.accuracy)
    rows = [
        (*cell, f"{sum(values) / len(values):.2f}", f"{min(values):.2f}", f"{max(values):.2f}", str(len(values)))
        for cell, values in by_cell.items()
    ]
    columns = ("model", "attack", "threat", "mean", "lowest", "highest", "seeds")
    return [Table("robust accuracy over seeds, in %", columns, rows, left=3)] if rows else []


def _size_front(front: SizeFront) -> Table:
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
    notes = [
        "front: shown to be more robust than every smaller model, and not less than one of equal size (paired test, 5 %)",
        "FLOPs of one image: a multiplication and an addition are two; a number in brackets is published",
    ]
    if front.left_out:
        notes.append(f"left out, since their size or one of the attacks is missing: {', '.join(front.left_out)}")
    return Table(f"robust accuracy against size | {front.attack} | {front.threat}", columns, rows, notes)


def _failures(results: BenchmarkResult) -> list[Table]:
    rows = [(result.cell.name, result.error) for result in results.failed]
    return [Table(f"{len(rows)} failed", ("cell", "why"), rows, left=2)] if rows else []
