"""`vitattack plot KIND RUNS... -o fig.pdf`."""

from __future__ import annotations

from pathlib import Path

import click

from vitattack.report.overview.kinds import KINDS, Kind

from .options import option
from .terminal import say


@click.command(
    "plot",
    epilog="\b\nKinds:\n"
    + "".join(f"  {name:<10} {what}\n" for name, what in KINDS.items())
    + """
\b
Examples:
  vitattack plot passes runs -o passes.pdf                survivors against passes, one column wide
  vitattack plot budget runs -o eps.svg --columns 2       accuracy against eps, two columns wide
  vitattack plot accuracy 239a1e56 77b0c2d1 -o two.png    two runs by key, as vitattack runs lists them
  vitattack plot softmax softmax.json -o gaps.pdf         what diagnose-softmax wrote with --json
""",
)
@click.argument("kind", type=click.Choice([*KINDS]))
@click.argument("runs", nargs=-1, metavar="[RUNS]...")
@option("--out", default="runs", type=click.Path(file_okay=False), help="The store in which keys are looked for.")
@click.option("-o", "--output", default="plot.pdf", show_default=True, help="FILE.pdf, .svg or .png.")
@click.option(
    "--columns", type=click.Choice(["1", "2"]), default="1", show_default=True, help="Columns of a paper it is wide."
)
@click.option("--no-title", is_flag=True, help="Leave the titles to the caption.")
def command(kind: Kind, runs: tuple[str, ...], out: str, output: str, columns: str, no_title: bool) -> None:
    """Draw figures of one KIND of the RUNS: stores, runs by folder or key, and files of results.

    Fonts are embedded, and colours are distinct for all kinds of colour vision.
    """
    from vitattack.report.plots.paper import check_plot

    check_plot(output)

    from vitattack.core.errors import UsageError
    from vitattack.report.overview.figures import figures
    from vitattack.report.overview.read import read_everything
    from vitattack.report.plots.draw import sheet
    from vitattack.report.plots.paper import paper_style, save

    overview, attachments = read_everything(runs, Path(out))
    every = figures(overview, attachments)
    found = [figure for figure in every if figure.head.kind == kind]
    if not found:
        there = ", ".join(dict.fromkeys(figure.head.kind for figure in every)) or "none"
        raise UsageError(f"these runs have nothing for '{kind}' ({KINDS[kind]}): kinds they have: {there}")
    with paper_style():
        save(sheet(found, 2 if columns == "2" else 1, titles=not no_title), Path(output))
    say(f"wrote {output}: {len(found)} panel{'' if len(found) == 1 else 's'}")
