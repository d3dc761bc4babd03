"""`vitattack runs`: what a store holds, and what can be done with it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import suggestions
from .options import combined, option, output_options
from .terminal import say, write, write_json

if TYPE_CHECKING:
    from vitattack.records.stored_runs import State, StoredRun

STATES = ("finished", "running", "unfinished", "damaged", "newer")
DEFAULT_STORE = "runs"
RUNS = "RUN is a key or its beginning, a folder, or `last`."

store = option("--out", metavar="DIR", type=click.Path(file_okay=False), help="The store. [default: runs]")
# No environment variables: VITATTACK_MODEL and the like would narrow every list in silence.
filters = combined(
    click.option("--model", help="Only models with this text in their name, or that fit a pattern such as 'rb/*'."),
    click.option("--attack", help="Only attacks with this text, or that fit a pattern."),
    click.option("--since", metavar="TIME", help="Only runs of the last 3d, 12h or 30min, or since 2026-11-01."),
    click.option("--state", type=click.Choice(STATES), help="Only runs in this state."),
)
several = click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=suggestions.runs)


@click.group(
    "runs",
    invoke_without_command=True,
    epilog="""\b
Examples:
  vitattack runs                                 every run of the store, the last one first
  vitattack runs --model tiny --attack pgd --since 7d
  vitattack runs --state unfinished --json
  vitattack runs show last                       the stored table of the last run
  vitattack runs show 239a1e56 77b0c2d1          two attacks on one model, with their worst case
  vitattack runs table --format latex            a table for a paper
  vitattack runs export --parquet all.parquet    a row per image and run
  vitattack runs merge HOST1 HOST2 --out runs    bring the shards of several machines together
""",
)
@store
@filters
@output_options
@click.pass_context
def command(
    ctx: click.Context,
    out: str | None,
    model: str | None,
    attack: str | None,
    since: str | None,
    state: State | None,
    as_json: bool,
    form: str,
    quiet: bool,
) -> None:
    """List the runs of a store, show, open, export, verify, merge or delete them. Nothing is computed and torch is not loaded."""
    ctx.obj = out
    if ctx.invoked_subcommand is not None:
        if model or attack or since or state or as_json:
            raise click.UsageError(f"filters and --json belong behind the word {ctx.invoked_subcommand}")
        return
    from vitattack.records.stored_runs import filtered, stored_runs
    from vitattack.report.runs import runs_table

    from .output import show

    root = _root(out)
    every = stored_runs(root)
    shown = list(filtered(every, model, attack, since, state))
    content = {"schema": 1, "store": str(root), "runs": [run.json() for run in shown]}
    show(runs_table(root, shown, len(every)), content, "json" if as_json else form)


@command.command("show", epilog=f"{RUNS}  Example:  vitattack runs show last --format latex")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", shell_complete=suggestions.runs)
@store
@output_options
def show_runs(runs: tuple[str, ...], out: str | None, as_json: bool, form: str, quiet: bool) -> None:
    """Print the stored tables of runs; several on one model and the same images come with their worst case."""
    from vitattack.records.evaluations import grouped
    from vitattack.report.evaluation import tables

    from .output import show

    evaluations = grouped([run.result for run in _chosen(runs, out)])
    contents = [evaluation.json() for evaluation in evaluations]
    content = contents[0] if len(contents) == 1 else {"schema": 1, "evaluations": contents}
    show([table for each in evaluations for table in tables(each)], content, "json" if as_json else form)


@command.command(
    "table",
    epilog=f"""\b
{RUNS} Without one, all that the filters leave.
Examples:
  vitattack runs table                                               models down, attacks across, budgets over them
  vitattack runs table --rows model,threat --columns attack          a row for every eps
  vitattack runs table --no-intervals --format latex > table.tex     booktabs and graphicx, the best in bold
""",
)
@several
@store
@filters
@click.option(
    "--rows", default="model", show_default=True, help="Axes down the side: model, attack, threat, by commas."
)
@click.option("--columns", default="threat,attack", show_default=True, help="Axes across the top.")
@click.option("--no-intervals", is_flag=True, help="Leave the 95 % intervals out.")
@output_options
def table(
    runs: tuple[str, ...],
    out: str | None,
    rows: str,
    columns: str,
    no_intervals: bool,
    as_json: bool,
    form: str,
    quiet: bool,
    **chosen: Any,
) -> None:
    """Lay the accuracies of finished runs out as a table for a paper, worst cases included."""
    from vitattack.report.grid import fitted
    from vitattack.report.run_grid import run_grid

    from .output import show, terminal_width

    results = [run.result for run in _finished(_chosen(runs, out, **chosen), named=bool(runs))]
    results = results if runs else results[::-1]  # the first one first
    down, across = ([axis.strip() for axis in text.split(",") if axis.strip()] for text in (rows, columns))
    wide, narrow = run_grid(results, down, across, intervals=not no_intervals)
    form = "json" if as_json else form
    content = {
        "schema": 1,
        "title": wide.title,
        "columns": list(wide.columns),
        "rows": [list(row) for row in wide.rows],
    }
    show(fitted(wide, narrow, terminal_width()) if form == "table" else wide, content, form)


@command.command("open", epilog=f"{RUNS}  Example:  vitattack runs open last")
@click.argument("run", shell_complete=suggestions.runs)
@store
@click.option(
    "--path", "only_path", is_flag=True, help="Only print its folder, as for cd $(vitattack runs open last --path)."
)
def open_run(run: str, out: str | None, only_path: bool) -> None:
    """Open a page about a run in the browser, as `vitattack report` writes it."""
    [found] = _chosen([run], out)
    if only_path:
        write(str(found.folder))
        return
    from vitattack.core.files import cache_folder, write_atomically
    from vitattack.report.overview.read import read_everything
    from vitattack.report.page.document import page

    overview, attachments = read_everything([str(found.folder)])
    path = cache_folder("pages") / f"{found.key}.html"
    write_atomically(path, page(overview, attachments, title=found.folder.name))
    write(str(path))
    if click.launch(str(path)) != 0:
        say("there is no browser to open it with")


@command.command("rm", epilog=f"{RUNS}  Example:  vitattack runs rm 239a1e56 --yes")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", shell_complete=suggestions.runs)
@store
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove(runs: tuple[str, ...], out: str | None, yes: bool) -> None:
    """Delete runs with their records and examples, after asking. A run that is being written stays."""
    from vitattack.records.store_care import remove_run
    from vitattack.report.runs import run_line

    chosen = _chosen(runs, out)
    for run in chosen:
        say(run_line(run))
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("nobody can be asked here: add --yes to delete without asking")
        click.confirm(f"Delete {len(chosen)} run{'s' * (len(chosen) > 1)} for good?", abort=True, err=True)
    for run in chosen:
        remove_run(run)


@command.command(
    "export",
    epilog=f"""\b
{RUNS} Without one, all that the filters leave.
Examples:
  vitattack runs export --csv last.csv last
  vitattack runs export --parquet all.parquet --model swin
""",
)
@several
@store
@filters
@click.option("--parquet", type=click.Path(dir_okay=False), help="Write a parquet file.")
@click.option("--csv", type=click.Path(dir_okay=False), help="Write a CSV file.")
def export(runs: tuple[str, ...], out: str | None, parquet: str | None, csv: str | None, **chosen: Any) -> None:
    """Write the record of every image of finished runs, a row each."""
    if (parquet is None) == (csv is None):
        raise click.UsageError("name one file to write: --parquet FILE or --csv FILE")
    from vitattack.report.run_export import write_csv, write_parquet

    results = [run.result for run in _finished(_chosen(runs, out, **chosen), named=bool(runs))]
    count = write_parquet(results, Path(parquet)) if parquet else write_csv(results, Path(csv or ""))
    say(f"{count} rows of {len(results)} runs: {parquet or csv}")


@command.command(
    "verify",
    epilog=f"""\b
{RUNS} Without one, all that the filters leave.
Examples:
  vitattack runs verify                     every file of the store: checksums, and that results are those of their records
  vitattack runs verify last --judge        and the saved examples, once more on the plain model
""",
)
@several
@store
@filters
@click.option(
    "--judge", is_flag=True, help="Also judge saved examples on the plain model, which is loaded by its name."
)
@output_options
def verify(
    runs: tuple[str, ...], out: str | None, judge: bool, as_json: bool, form: str, quiet: bool, **chosen: Any
) -> None:
    """Check the files of runs. Exit code 1 if anything is damaged or refuted."""
    from vitattack.records.store_care import damage_of
    from vitattack.report.runs import run_line

    found = [(run, damage_of(run)) for run in _chosen(runs, out, **chosen)]
    if judge:
        found = [(run, damage or _refuted(run)) for run, damage in found]
    if as_json or form == "json":
        content = [{"run": str(run.folder), "state": run.state, "damage": damage} for run, damage in found]
        write_json({"schema": 1, "runs": content})
    else:
        for run, damage in found:
            write(f"{run_line(run)}: {'damaged' if damage else 'whole'}")
            for line in damage:
                write(f"  {line}")
    if any(damage for _, damage in found):
        sys.exit(1)


@command.command("merge", epilog="Example:  vitattack runs merge /mnt/host1/runs /mnt/host2/runs --out runs")
@click.argument("stores", nargs=-1, required=True, metavar="STORE...", type=click.Path(file_okay=False))
@store
def merge(stores: tuple[str, ...], out: str | None) -> None:
    """Copy the runs of other stores into this one. Finished runs here stay as they are; shards of one job come together."""
    from vitattack.records.store_care import merge_stores

    root = Path(out or _given_before() or DEFAULT_STORE)
    merged = merge_stores([Path(each) for each in stores], root)
    for each in merged:
        if each.remark:
            say(f"{each.run}: {each.remark}")
    counts = {fate: sum(each.fate == fate for each in merged) for fate in ("added", "completed", "equal", "kept")}
    write(
        f"{root}: {counts['added']} added, {counts['completed']} completed, {counts['equal']} were there, "
        f"{counts['kept']} not taken"
    )


def _refuted(run: StoredRun) -> list[str]:
    """What a model loaded anew refutes of the examples of a run."""
    from vitattack.core.errors import UsageError

    if run.state != "finished" or not run.has_examples:
        say(f"{run.short} has no examples to judge: run its command with --save-adv")
        return []
    from vitattack.evaluation.verify import judge_again

    try:
        return judge_again(run.result, run.result.job.model)
    except UsageError as error:
        return [
            f"the examples cannot be judged from their names alone ({error}): use vitattack verify {run.folder} MODEL"
        ]


def _given_before() -> str | None:
    """The store named before the subcommand."""
    ctx = click.get_current_context()
    return ctx.obj if isinstance(ctx.obj, str) else None


def _root(out: str | None) -> Path:
    return Path(out or _given_before() or DEFAULT_STORE)


def _chosen(texts: Sequence[str], out: str | None, **chosen: Any) -> list[StoredRun]:
    """The named runs, each once, or without names all that the filters leave."""
    from vitattack.records.stored_runs import filtered, find_run, is_run, stored_runs

    root = _root(out)
    if not texts:
        return list(filtered(stored_runs(root), **chosen))
    if any(chosen.values()):
        raise click.UsageError("runs are named, so filters have nothing to choose: drop one or the other")
    elsewhere = all("/" in text and is_run(Path(text)) for text in texts)
    known = [] if elsewhere else stored_runs(root)
    return list({run.folder: run for run in (find_run(root, text, known) for text in texts)}.values())


def _finished(runs: Sequence[StoredRun], *, named: bool) -> list[StoredRun]:
    """The finished ones; those that were named have to be finished."""
    done = [run for run in runs if named or run.state == "finished"]
    if len(done) < len(runs):
        say(f"{len(runs) - len(done)} runs are not finished and left out")
    return done
