"""`vitattack report RUNS... -o report.html`."""

from __future__ import annotations

from pathlib import Path

import click

from .options import option
from .terminal import say


@click.command(
    "report",
    epilog="""\b
Examples:
  vitattack report                                     the store runs, into report.html
  vitattack report runs other/runs -o all.html         two stores on one page
  vitattack report 239a1e56 last -o two.html           two runs by key, as vitattack runs lists them
  vitattack report runs softmax.json check.json        with what diagnose-softmax, check, transfer and bench wrote with --json
  vitattack report runs --classes names.txt            class names, one a line
\b
The page is one file that needs no network. A link to one image: report.html#image=417.
""",
)
@click.argument("runs", nargs=-1, metavar="[RUNS]...")
@option("--out", default="runs", type=click.Path(file_okay=False), help="The store in which keys are looked for.")
@click.option("-o", "--output", default="report.html", show_default=True, help="The file to write.")
@click.option("--title", default="Robustness report", show_default=True, help="The title of the page.")
@click.option("--classes", metavar="FILE", help="Names of the classes in their order, one a line.")
@click.option(
    "--images", type=click.IntRange(0), default=60, show_default=True, help="Pictures of a run, where it has them."
)
def command(runs: tuple[str, ...], out: str, output: str, title: str, classes: str | None, images: int) -> None:
    """Write one HTML page about the RUNS: stores, runs by folder or key, and files of results.

    Leaderboard, comparison image by image, figures, doubts and commands, from the stored records alone; and pictures
    of runs with --save-adv.
    """
    from vitattack.core.files import write_atomically
    from vitattack.data.labels.names import names_in
    from vitattack.report.overview.read import read_everything
    from vitattack.report.page.document import page

    overview, attachments = read_everything(runs, Path(out))
    names = names_in(Path(classes)) if classes else ()
    text = page(overview, attachments, title=title, classes=names, pictures=images)
    write_atomically(Path(output), text)
    count = len(overview.runs)
    say(f"wrote {output}: {count} run{'' if count == 1 else 's'}, {len(text.encode()) / 1e6:.1f} MB")
