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
WIDEST_NAME = 40


def bench_tables(results: BenchmarkResult, width: int | None = None) -> list[Table]:
    """All tables; for a terminal of `width` characters cells have two lines and wide tables come in pieces."""
    numbers = compared_numbers(results)
    worst = worst_cases(results)
    models = dict.fromkeys(number.model for number in numbers)
    shown = [number for model in models for number in (*numbers, *worst) if number.model == model]
    tables = [
        _layout(results, shown, " " if width is None else "\n"),
        *_over_seeds(results, shown),
        *_differences(results, numbers),
        *map(_size_front, size_fronts(results, numbers)),
        *_failures(results),
    ]
    return tables if width is None else [piece for table in tables for piece in _pieces(table, width)]


def _pieces(table: Table, width: int) -> list[Table]:
    """A table split between columns into pieces that fit; each repeats the row names, the last one has the notes."""
    columns = list(zip(table.columns, *table.rows, strict=True))
    widths = [max(len(line) for cell in column for line in cell.splitlines() or [""]) + 2 for column in columns]
    names = sum(min(size, WIDEST_NAME) for size in widths[: table.left])
    groups: list[list[int]] = [[]]
    used = 0
    for place in range(table.left, len(columns)):
        if groups[-1] and used + widths[place] > width - names:
            groups.append([])
            used = 0
        groups[-1].append(place)
        used += widths[place]
    pieces = []
    for number, group in enumerate(groups):
        places = [*range(table.left), *group]
        title = table.title if len(groups) == 1 else f"{table.title} ({number + 1} of {len(groups)})"
        rows = [tuple(row[place] for place in places) for row in table.rows]
        notes = table.notes if number + 1 == len(groups) else ()
        heads = [table.columns[place] for place in places]
        pieces.append(replace(table, title=title, columns=heads, rows=rows, notes=notes))
    return pieces


def _layout(results: BenchmarkResult, numbers: Sequence[ComparedNumber], between: str) -> Table:
    """The table in the layout that the file asks for; `between` separates measured and published numbers."""
    bench = results.bench
    by_place: dict[tuple[tuple[str, ...], tuple[str, ...]], ComparedNumber] = {}
    for number in _repeat_clean(numbers, bench.rows, bench.columns):
        row = tuple(AXIS_LABEL[axis](number) for axis in bench.rows)
        column = tuple(AXIS_LABEL[axis](number) for axis in bench.columns)
        by_place.setdefault((row, column), number)
    names = list(dict.fromkeys(row for row, _ in by_place))
    heads = list(dict.fromkeys(column for _, column in by_place))
    constant = {
        axis for place, axis in enumerate(bench.columns) if len({head[place] for head in heads if head[place]}) < 2
    }
    hidden = constant if constant < set(bench.columns) else set()
    columns = [_head(head, bench.columns, hidden) for head in heads]
    rows = [(*name, *(_cell(by_place.get((name, head)), between) for head in heads)) for name in names]
    notes = [KEY if bench.reference else MEASURED, *bench_notes(results, numbers)]
    return Table(f"{bench.title} | {_conditions(results)}", (*bench.rows, *columns), rows, notes, left=len(bench.rows))


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


def _head(head: Sequence[str], axes: Sequence[str], hidden: set[str]) -> str:
    """Name of a column, without axes that are constant and appear in the title."""
    shown = [value for axis, value in zip(axes, head, strict=True) if value and axis not in hidden]
    return " ".join(shown) or next((value for value in head if value), "")


def _conditions(results: BenchmarkResult) -> str:
    bench = results.bench
    counts = sorted({result.n for result in results.cells if result.n})
    n = f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]}" if counts else "not run"
    seeds = f"seed{'s' if len(bench.seeds) > 1 else ''} {', '.join(map(str, bench.seeds))}"
    return " | ".join([", ".join(bench.threats), bench.data, n, seeds])


def _cell(number: ComparedNumber | None, between: str) -> str:
    if number is None:
        return ""
    published = f"[{number.published.value:.2f}]" if number.published else ""
    if number.measured is None:
        return published if number.status == "published" else f"{number.status} {published}".strip()
    measured = number.measured
    text = f"{100 * measured.accuracy:.1f} ({span(measured.low, measured.high, '-')})"
    return text if number.gap is None else f"{text}{between}{published} {_difference(number)} {_verdict(number)}"


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
