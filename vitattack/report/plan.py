"""The price of a benchmark as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vitattack.bench.plan.plan import Plan, Priced
from vitattack.core.table import Table

UNITS = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def table(plan: Plan) -> Table:
    """One line for every cell, and the sum of what is to run."""
    columns = ("cell", "images", "fwd + bwd", "FLOPs", "fetch", "time", "")
    rows = [(_name(row, plan), *_figures(row)) for row in plan.rows]
    sums = (_sum(plan, "flops", flops), _sum(plan, "fetch", size), _sum(plan, "hours", time))
    rows.append((f"{len(plan.to_run)} cells to run", "", "", *sums, ""))
    return Table(f"plan: {plan.bench.title}", columns, rows, _notes(plan), whole=True)


def _name(row: Priced, plan: Plan) -> str:
    cell, bench = row.cell, plan.bench
    more = [cell.threat] if len(bench.threats) > 1 else []
    more += [f"seed {cell.seed}"] if len(bench.seeds) > 1 else []
    return ", ".join([cell.label, cell.attack_label, *more])


def _figures(row: Priced) -> Sequence[str]:
    if not row.cell.runnable:
        return ("", "", "", "", "", "published")
    passes = f"{row.passes.forwards:,.0f} + {row.passes.backwards:,.0f}" if row.passes else "?"
    n = "?" if row.n is None else f"{row.n:,}"
    return (n, passes, flops(row.flops), size(row.fetch), time(row.hours), "stored" if row.stored else "")


def _sum(plan: Plan, key: str, form: Callable[[float | None], str]) -> str:
    value = plan.total(key)
    if not plan.to_run:
        return ""
    return ("over " if value is not None and plan.unknown(key) else "") + form(value)


def _notes(plan: Plan) -> list[str]:
    notes = ["upper bounds: every image costs what one costs that nothing fools (fwd + bwd); fooled ones leave early"]
    least = plan.total("least_hours")
    if least is not None and not any(row.least is None for row in plan.to_run):
        notes.append(f"if the published numbers hold, survivors alone take {time(least)}")
    sources = sorted({row.rate.source for row in plan.to_run if row.rate})
    rates = sorted({row.rate.flops_per_second for row in plan.to_run if row.rate})
    if rates:
        spread = f"{flops(rates[0])} to {flops(rates[-1])}" if len(rates) > 1 else flops(rates[0])
        notes.append(f"time: on one device at {spread} FLOPs per second ({', '.join(sources)})")
    elif plan.to_run:
        notes.append("time: give --throughput 20T (FLOPs per second), or measure this machine with --calibrate")
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


def time(hours: float | None) -> str:
    """Hours, minutes or seconds, whichever can be read."""
    if hours is None:
        return "?"
    if hours >= 1:
        return f"{hours:,.0f} h" if hours >= 100 else f"{hours:.1f} h"
    return f"{hours * 60:.0f} min" if hours * 60 >= 2 else f"{hours * 3600:.1f} s"
