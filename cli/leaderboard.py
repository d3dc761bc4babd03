"""`vitattack leaderboard FOLDER...`."""

from __future__ import annotations

from pathlib import Path

import click

from .terminal import say, write_json


@click.command(
    "leaderboard",
    epilog="""\b
Examples:
  vitattack leaderboard runs                          the models of a store, into leaderboard/index.html
  vitattack leaderboard submissions -o site           a folder with a store for each submission
  vitattack leaderboard submissions --json | jq .left_out
\b
A row needs a finished run of auto or of AutoAttack; docs/leaderboard.md says how to send one in.
""",
)
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER...", type=click.Path(file_okay=False))
@click.option("-o", "--output", default="leaderboard", show_default=True, help="The folder to write the pages into.")
@click.option("--title", default="Leaderboard", show_default=True, help="The title of the page.")
@click.option("--json", "as_json", is_flag=True, help="Print the boards as one JSON object, and write nothing.")
def command(folders: tuple[str, ...], output: str, title: str, as_json: bool) -> None:
    """Check all runs below the FOLDERs and make a leaderboard of them: static pages that need no network.

    A board is of the same images under the same threat; a row shows AutoAttack, `auto`, the best other attack, their worst case
    image by image, certificate, interval and cost. Runs with damaged files are left out, with the reason.
    """
    from vitattack.report.overview.board import read_leaderboard
    from vitattack.report.page.board_pages import write_leaderboard

    found = read_leaderboard(map(Path, folders))
    if as_json:
        write_json(found.json())
        return
    written = write_leaderboard(found, Path(output), title)
    for each in found.left_out:
        say(f"left out: {each.folder}: {'; '.join(each.reasons)}")
    rows = sum(len(board.entries) for board in found.boards)
    say(f"wrote {written[0]}: {rows} rows on {len(found.boards)} boards")
