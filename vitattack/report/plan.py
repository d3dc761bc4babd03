"""The price of a benchmark as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vitattack.bench.plan import Plan, Priced
from vitattack.report.table import Table

UNITS = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def table(plan: Plan) -> Table:
    """One line for every cell, and the sum of what is to run."""
    seeds = len(plan.bench.seeds) > 1
    columns = ("model", "attack", "threat", *(("seed",) if seeds else ()))
    figures = ("images", "fwd + bwd", "FLOPs", "fetch", "hours", "")
    shown = [(*_names(row, seeds), *_figures(row)) for row in plan.rows]
    total = ("to run", f"{len(plan.to_run)} cells", *[""] * (len(columns) - 2))
    shown.append(
        (*total, "", "", _sum(plan, "flops", flops), _sum(plan, "fetch", size), _sum(plan, "hours", hours), "")
    )
    return Table(f"plan: {plan.bench.title}", (*columns, *figures), shown, _notes(plan), left=len(columns))


def _names(row: Priced, seeds: bool) -> Sequence[str]:
    cell = row.cell
    return (cell.label, cell.attack_label, cell.threat, *((str(cell.seed),) if seeds else ()))


def _figures(row: Priced) -> Sequence[str]:
    if not row.cell.runnable:
        return ("", "", "", "", "", "published")
    passes = f"{row.passes.forwards:,.0f} + {row.passes.backwards:,.0f}" if row.passes else "?"
    n = "?" if row.n is None else f"{row.n:,}"
    return (n, passes, flops(row.flops), size(row.fetch), hours(row.hours), "stored" if row.stored else "")


def _sum(plan: Plan, key: str, form: Callable[[float | None], str]) -> str:
    value = plan.total(key)
    return ("over " if value is not None and plan.unknown(key) else "") + form(value)


def _notes(plan: Plan) -> list[str]:
    notes = ["upper bounds: every image costs what one costs that nothing fools (fwd + bwd); fooled ones leave early"]
    least = plan.total("least_hours")
    if least is not None and not any(row.least is None for row in plan.to_run):
        notes.append(f"if the published numbers hold, survivors alone take {hours(least)} hours")
    sources = sorted({row.rate.source for row in plan.to_run if row.rate})
    rates = sorted({row.rate.flops_per_second for row in plan.to_run if row.rate})
    if rates:
        spread = f"{flops(rates[0])} to {flops(rates[-1])}" if len(rates) > 1 else flops(rates[0])
        notes.append(f"hours: on one device at {spread} FLOPs per second ({', '.join(sources)})")
    elif plan.to_run:
        notes.append("hours: give --throughput 20T (FLOPs per second), or measure this machine with --calibrate")
    if any(row.passes is None for row in plan.to_run):
        notes.append("?: nobody recorded the price of this attack, or the figures of this model or its data")
    return [*notes, *plan.notes]


def flops(value: float | None) -> str:
    """1.2P for 1.2e15."""
    if value is None:
        return "?"
    unit, letter = next(((u, x) for u, x in UNITS if value >= u), (1.0, ""))
    return f"{value / unit:.3g}{letter}"


def size(value: float | None) -> str:
    if value is None:
        return "?"
    return "" if value == 0 else f"{value / 1e9:.2f} GB" if value >= 1e9 else f"{value / 1e6:.0f} MB"


def hours(value: float | None) -> str:
    if value is None:
        return "?"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}" if value >= 0.01 else f"{value:.4f}"
