"""Details behind the numbers: published ones, the tables and notes of each run, its command and its environment."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from vitattack.core.percent import span
from vitattack.core.table import Table
from vitattack.records.stored_runs import StoredRun
from vitattack.report.overview.attachments import CheckOutcome, ComparedCell
from vitattack.report.overview.command import command_of
from vitattack.report.overview.overview import Overview
from vitattack.report.overview.run import ShownRun
from vitattack.report.page.html import Markup, element, name_of, together


def table(value: Table, of: str) -> Markup:
    """A table with its title and notes; `of` names the run, since tables of several may have one title."""
    heads = [element("th", name, scope="col", class_=_side(at, value)) for at, name in enumerate(value.columns)]
    rows = [
        element("tr", *(element("td", cell, class_=_side(at, value)) for at, cell in enumerate(row)))
        for row in value.rows
    ]
    notes = [element("p", note, class_="muted") for note in value.notes]
    content = element(
        "table", element("caption", value.title), element("thead", element("tr", *heads)), element("tbody", *rows)
    )
    box = element("div", content, class_="scroll", tabindex=0, role="region", aria_label=f"{value.title} ({of})")
    return together([box, *notes])


def _side(place: int, value: Table) -> str | None:
    return None if place < value.left else "number"


def compared(cells: Sequence[ComparedCell]) -> Markup | None:
    """Measured numbers of a benchmark against published ones."""
    if not cells:
        return None
    rows = []
    for cell in cells:
        gap = cell.gap
        colour = "inside" if cell.inside else "above" if gap.difference > 0 else "below"
        rows.append(
            element(
                "tr",
                element("th", name_of(cell.model), scope="row"),
                element("td", name_of(cell.attack)),
                element("td", name_of(cell.threat)),
                element("td", f"{100 * cell.measured:.1f}", class_="number"),
                element("td", f"{cell.n:,}", class_="number"),
                element("td", f"{100 * cell.published:.2f}", class_="number", title=cell.source or None),
                element("td", f"{100 * gap.difference:+.1f}", class_=f"number gap {colour}"),
                element("td", span(gap.low, gap.high, " to ", signed=True), class_="number"),
                element("td", "sampling explains it" if cell.inside else "more than sampling explains"),
            )
        )
    names = ("Model", "Attack", "Threat", "Measured %", "n", "Published %", "Gap", "95 %", "")
    sides = [None, None, None, "number", "number", "number", "number", "number", None]
    heads = [element("th", name, scope="col", class_=side) for name, side in zip(names, sides, strict=True)]
    content = element("table", element("thead", element("tr", *heads)), element("tbody", *rows))
    inside = sum(cell.inside for cell in cells)
    return element(
        "section",
        element("h2", "Against published numbers"),
        element("p", f"Sampling explains {inside} of {len(cells)} gaps.", class_="muted"),
        element("div", content, class_="scroll", tabindex=0, role="region", aria_label="Against published numbers"),
        id="published",
    )


def checks(outcomes: Sequence[CheckOutcome]) -> Markup | None:
    """Every check of a number, with its figure, and what it asks."""
    if not outcomes:
        return None
    parts = []
    for outcome in outcomes:
        title = f"{outcome.model} under {outcome.threat}, {outcome.data}: {outcome.verdict}"
        rows = [(name, figure, word, asks) for name, asks, figure, word in outcome.items]
        notes = (*outcome.reasons, f"certificate: {outcome.certificate}")
        parts.append(table(Table(title, ("check", "figure", "", "question"), rows, notes, left=4), "check"))
    return element("section", element("h2", "Checks"), *parts, id="checks")


def run_details(overview: Overview) -> Markup:
    """A block per run: what the attack reports, what was doubted, and how to make it again."""
    return together(_run(run) for images in overview.sets for run in images.runs)


def _run(run: ShownRun) -> Markup:
    command = command_of(run.job, run.model)
    head = element(
        "summary",
        element("span", name_of(run.job.model), ", ", name_of(run.attack), class_="run-name"),
        element("span", name_of(run.job.threat), ", ", name_of(run.job.data), class_="muted"),
    )
    shown = (
        _command(command)
        if command
        else element("p", "Run from Python on a model or images in memory.", class_="muted")
    )
    return element(
        "details", head, shown, *_reported(run), _environment(run), class_="run card", id=f"run-{run.job.key}"
    )


def _command(command: str) -> Markup:
    copy = element("button", "Copy", type="button", class_="copy", hidden=True)
    return element("div", element("pre", element("code", command), tabindex=0), copy, class_="command")


def _reported(run: ShownRun) -> Iterator[Markup]:
    for section in run.sections:
        for name, accuracy in section.rows:
            yield element("p", f"{name}: {100 * accuracy.accuracy:.1f} % ({span(accuracy.low, accuracy.high)})")
        yield from (element("p", note) for note in section.notes)
        yield from (table(each, run.job.key) for each in section.tables)
    if run.doubts:
        yield element("p", "Doubts", class_="label")
        yield element("ul", *(element("li", doubt) for doubt in run.doubts))


def _environment(run: ShownRun) -> Markup:
    facts: dict[str, Any] = {
        "attack": run.job.attack,
        "settings": run.job.settings,
        "images": run.job.data,
        "seed": run.job.seed,
        "key": run.job.key,
        "folder": str(run.folder),
        "model": run.model,
        **run.provenance,
    }
    pairs = [
        element("div", element("dt", name.replace("_", " ")), element("dd", _value(value)))
        for name, value in facts.items()
        if value not in (None, "", {})
    ]
    return element("details", element("summary", "Environment"), element("dl", *pairs), class_="environment")


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {_value(each)}" for name, each in value.items() if each is not None)
    return value if isinstance(value, str) else json.dumps(value)


STATES = {
    "running": "is being written just now; {n} images so far",
    "unfinished": "{n} images so far; the same command goes on from there",
    "damaged": "is damaged; the same command repairs it",
    "newer": "was written by a later version of vitattack",
    "finished": "has a result that does not fit its records; the same command repairs it",
}


def unfinished(runs: Sequence[StoredRun]) -> Markup | None:
    """Runs without a number: what is there of them, and the command that goes on."""
    if not runs:
        return None
    items = []
    for run in runs:
        state = STATES[run.state].format(n=f"{run.n:,}")
        words = (run.job.model, run.job.attack, run.job.threat) if run.job else (run.folder.name,)
        command = command_of(run.job, {}) if run.job else None
        names = [part for word in words for part in (name_of(word), ", ")]
        items.append(element("li", element("p", *names, state), _command(command) if command else None))
    title = "1 run is not finished" if len(runs) == 1 else f"{len(runs)} runs are not finished"
    return element(
        "section",
        element("h2", title),
        element("p", "They count in no number on this page.", class_="muted"),
        element("ul", *items, class_="plain"),
        id="unfinished",
        data_nav="Unfinished",
        class_="card",
    )
