"""A leaderboard as static pages: one with the boards, and a report for every model on it. Nothing runs in the first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from vitattack.core.files import cannot_write, replace_content
from vitattack.core.percent import span
from vitattack.core.versions import package_version
from vitattack.records.stats import Accuracy
from vitattack.report.overview.board import Board, Entry, Leaderboard, LeftOut
from vitattack.report.overview.overview import Overview
from vitattack.report.overview.run import ShownRun
from vitattack.report.page.document import page
from vitattack.report.page.html import Markup, element, escaped, name_of, together
from vitattack.report.page.leaderboard import interval_line
from vitattack.report.page.skeleton import filled, policy, source

HEADS = (
    *("", "Model", "Clean %", "auto %", "AutoAttack %", "Best other attack %", "Worst case %", "95 %", "0 to 100 %"),
    *("Certificate", "Passes", "Doubts"),
)
PICTURES = 12  # of a run on the page of a model


def write_leaderboard(found: Leaderboard, folder: Path, title: str) -> list[Path]:
    """Write index.html, leaderboard.json and a report per model into a folder, and return the files."""
    made = {"index.html": index_page(found, title), "leaderboard.json": json.dumps(found.json(), indent=2) + "\n"}
    for place, (board, entry) in _places(found).items():
        name = f"{entry.row.model}, {board.threat}"
        made[place] = page(Overview(entry.row.runs), title=name, pictures=PICTURES)
    try:
        (folder / "models").mkdir(parents=True, exist_ok=True)
        for name, text in made.items():
            replace_content(folder / name, text.encode())
    except OSError as error:
        raise cannot_write(folder, error) from error
    return [folder / name for name in made]


def index_page(found: Leaderboard, title: str) -> str:
    """The HTML of the boards; the same runs give the same bytes."""
    style = source("page.css") + source("leaderboard.css")
    places = {id(entry): place for place, (_, entry) in _places(found).items()}
    models = sum(len(board.entries) for board in found.boards)
    sections = [_section(board, places) for board in found.boards]
    parts = {
        "policy": policy(style),
        "title": escaped(title),
        "style": style,
        "about": escaped(
            f"{models} row{'s' * (models != 1)} on {len(found.boards)} board{'s' * (len(found.boards) != 1)}"
        ),
        "main": together([*(sections or [_nothing()]), _left_out(found.left_out)]),
        "version": escaped(package_version("vitattack") or ""),
    }
    return filled("leaderboard.html", parts)


def _places(found: Leaderboard) -> dict[str, tuple[Board, Entry]]:
    """The page of every entry, named by the first run on it."""
    return {
        f"models/{entry.row.runs[0].job.key[:16]}.html": (board, entry)
        for board in found.boards
        for entry in board.entries
    }


def _section(board: Board, places: dict[int, str]) -> Markup:
    heads = [element("th", head, scope="col") for head in HEADS]
    rows = [_row(rank, entry, places[id(entry)]) for rank, entry in _ranks(board)]
    table = element("table", element("thead", element("tr", *heads)), element("tbody", *rows), class_="board")
    about = (
        f"{board.images.n:,} images, the same for every model; the worst case is that of all attacks, image by image."
    )
    return element(
        "section",
        element("h2", name_of(board.images.data), " under ", name_of(board.threat)),
        element("p", about, class_="muted"),
        element("div", table, class_="scroll", tabindex=0, role="region", aria_label="Leaderboard"),
    )


def _ranks(board: Board) -> Iterator[tuple[int, Entry]]:
    """The entries with their ranks; equal worst cases have equal ones."""
    rank = 0
    for number, entry in enumerate(board.entries):
        if number == 0 or entry.row.worst.correct != board.entries[number - 1].row.worst.correct:
            rank = number + 1
        yield rank, entry


def _row(rank: int, entry: Entry, place: str) -> Markup:
    row, certificate = entry.row, entry.certificate
    doubts = element("ul", *(element("li", doubt) for doubt in row.doubts))
    shown = f"{certificate[0]} of {certificate[1]}" if certificate else "none"
    cells = [
        element("td", str(rank), class_="number"),
        element("th", element("a", name_of(row.model), href=place), scope="row"),
        _number(row.clean),
        _run(entry.auto),
        _run(entry.autoattack),
        _run(entry.other, named=True),
        element("td", element("b", f"{100 * row.worst.accuracy:.1f}"), class_="number"),
        element("td", span(row.worst.low, row.worst.high), class_="number"),
        element("td", interval_line(row.worst, row.clean), class_="bar"),
        element("td", shown, class_="number", title="planted examples that auto found"),
        element("td", f"{row.passes:,.0f}", class_="number"),
        element("td", element("details", element("summary", str(len(row.doubts))), doubts) if row.doubts else ""),
    ]
    return element("tr", *cells)


def _number(accuracy: Accuracy) -> Markup:
    return element("td", f"{100 * accuracy.accuracy:.1f}", class_="number")


def _run(run: ShownRun | None, *, named: bool = False) -> Markup:
    if run is None:
        return element("td", element("span", "not run", class_="muted"), class_="number")
    name = element("div", name_of(run.attack), class_="muted small") if named else None
    return element("td", f"{100 * run.robust.accuracy:.1f}", name, class_="number", title=run.job.attack)


def _nothing() -> Markup:
    return element("section", element("h2", "No model yet"), element("p", "No run in these folders can be ranked."))


def _left_out(runs: tuple[LeftOut, ...]) -> Markup | None:
    if not runs:
        return None
    items = [element("li", element("code", str(each.folder)), ": ", "; ".join(each.reasons)) for each in runs]
    return element("section", element("h2", "Left out"), element("ul", *items), id="left-out")
