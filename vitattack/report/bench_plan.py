"""Table of the estimated cost of a benchmark."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vitattack.bench.plan.cost import CellCost, Figure, Plan
from vitattack.core.table import Table

UNITS = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def plan_table(plan: Plan) -> Table:
    """One row per cell, and the sums over the cells to run."""
    columns = ("cell", "images", "fwd + bwd", "FLOPs", "fetch", "time", "")
    rows = [(_name(row, plan), *_figures(row)) for row in plan.rows]
    sums = (
        _sum(plan, lambda row: row.flops, format_flops),
        _sum(plan, lambda row: row.fetch, format_bytes),
        _sum(plan, lambda row: row.hours, format_hours),
    )
    rows.append((f"{len(plan.to_run)} cells to run", "", "", *sums, ""))
    return Table(f"plan: {plan.bench.title}", columns, rows, _notes(plan), whole=True)


def _name(row: CellCost, plan: Plan) -> str:
    cell, bench = row.cell, plan.bench
    threat = [cell.threat] if len(bench.threats) > 1 else []
    seed = [f"seed {cell.seed}"] if len(bench.seeds) > 1 else []
    return ", ".join([cell.label, cell.attack_label, *threat, *seed])


def _figures(row: CellCost) -> Sequence[str]:
    if not row.cell.runnable:
        return ("", "", "", "", "", "published")
    passes = f"{row.passes.forwards:,.0f} + {row.passes.backwards:,.0f}" if row.passes else "?"
    n = "?" if row.n is None else f"{row.n:,}"
    state = "stored" if row.stored else ""
    return (n, passes, format_flops(row.flops), format_bytes(row.fetch), format_hours(row.hours), state)


def _sum(plan: Plan, figure: Figure, form: Callable[[float | None], str]) -> str:
    """The sum over the cells to run; a lower bound if some figures are unknown."""
    total = plan.total(figure)
    if not plan.to_run:
        return ""
    return ("over " if total is not None and plan.unknown(figure) else "") + form(total)


def _notes(plan: Plan) -> list[str]:
    notes = ["upper bounds: every image costs what one costs that nothing fools (fwd + bwd); fooled ones leave early"]
    least = plan.total(lambda row: row.least_hours)
    if least is not None and not any(row.least_flops is None for row in plan.to_run):
        notes.append(f"if the published numbers hold, survivors alone take {format_hours(least)}")
    sources = sorted({row.rate.source for row in plan.to_run if row.rate})
    rates = sorted({row.rate.flops_per_second for row in plan.to_run if row.rate})
    if rates:
        ends = (rates[0], rates[-1]) if len(rates) > 1 else rates
        spread = " to ".join(map(format_flops, ends))
        notes.append(f"time: on one device at {spread} FLOPs per second ({', '.join(sources)})")
    elif plan.to_run:
        notes.append("time: give --throughput 20T (FLOPs per second), or measure this machine with --calibrate")
    if any(row.passes is None for row in plan.to_run):
        notes.append("?: unknown price of the attack, or unknown size of the model or its data")
    return [*notes, *plan.notes]


def format_flops(value: float | None) -> str:
    """FLOPs with a unit: 1.2P for 1.2e15."""
    if value is None:
        return "?"
    unit, letter = next(((unit, letter) for unit, letter in UNITS if value >= unit), (1.0, ""))
    return f"{value / unit:.3g}{letter}"


def format_bytes(value: float | None) -> str:
    """Megabytes or gigabytes; empty for nothing."""
    if value is None:
        return "?"
    return "" if value == 0 else f"{value / 1e9:.2f} GB" if value >= 1e9 else f"{value / 1e6:.0f} MB"


def format_hours(hours: float | None) -> str:
    """Hours, minutes or seconds, whichever is readable."""
    if hours is None:
        return "?"
    if hours >= 1:
        return f"{hours:,.0f} h" if hours >= 100 else f"{hours:.1f} h"
    return f"{hours * 60:.0f} min" if hours * 60 >= 2 else f"{hours * 3600:.1f} s"
