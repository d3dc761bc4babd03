"""`python -m tests.golden.record`: run golden cases and keep their records, or with --check compare them with those kept."""

from __future__ import annotations

import os
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path

import click

from .cases import CASES, LISTED, Case
from .comparing import EQUAL, Comparison, compare
from .running import missing, run
from .storing import RECORDS, Record, here, place, read_environment, write_environment


@click.command()
@click.option("--only", multiple=True, metavar="PATTERN", help="Only cases whose name fits: 'quick/*', '*pgd*'.")
@click.option("--dir", "folder", type=click.Path(path_type=Path), default=RECORDS, help="Where records are kept.")
@click.option(
    "--check", is_flag=True, help="Compare with the records kept there; code 1 if an unlisted difference is seen."
)
def main(only: tuple[str, ...], folder: Path, check: bool) -> None:
    """Record golden cases, or check that nothing has changed since. Times are CPU seconds."""
    chosen = [c for name, c in CASES.items() if not only or any(fnmatchcase(name, pattern) for pattern in only)]
    if not chosen:
        raise click.UsageError(f"no case fits {', '.join(only)}: the names are in tests/golden/cases.py")
    with tempfile.TemporaryDirectory(prefix="golden-home-") as home:
        _leave_the_user(home)
        if check:
            raise SystemExit(_check(chosen, folder))
        _record(chosen, folder)


def _leave_the_user(home: str) -> None:
    """The cache, the zoo and the options of whoever runs this stay out of it."""
    for name in [name for name in os.environ if name.startswith("VITATTACK_")]:
        del os.environ[name]
    os.environ["VITATTACK_HOME"] = home


def _record(chosen: list[Case], folder: Path) -> None:
    known, now = read_environment(folder), here()
    if known not in (None, now) and len(chosen) < len(CASES):
        raise click.UsageError(
            f"the records in {folder} are of {known}, this is {now}: record all of them anew, or give another --dir"
        )
    write_environment(folder)
    for number, case in enumerate(chosen, 1):
        found, seconds = _timed(case)
        if found is not None:
            found.write(place(folder, case.name))
        said = f"{seconds:6.1f} s" if found else f"skipped: {missing(case)} is not installed"
        click.echo(f"{number:3d}/{len(chosen)} {case.name:44s} {said}")


def _check(chosen: list[Case], folder: Path) -> int:
    """A line per case; 1 if any differs in a way that is not listed, or has no record."""
    known, now = read_environment(folder), here()
    same = known == now
    click.echo(f"records are of {known}")
    if not same:
        click.echo(f"this is {now}: labels, clean predictions and statuses are compared, not bytes")
    equal = listed = 0
    for case in chosen:
        path = place(folder, case.name)
        if not path.exists():
            click.echo(f"{case.name:44s} no record")
            continue
        found, seconds = _timed(case)
        if found is None:
            equal += 1
            click.echo(f"{case.name:44s} skipped: {missing(case)} is not installed")
            continue
        told = compare(case, Record.read(path), found, same_environment=same)
        equal += told.outcome == EQUAL
        listed += told.listed
        click.echo(f"{case.name:44s} {_said(told, same)} ({seconds:.1f} s)")
    click.echo(f"{equal} of {len(chosen)} as recorded, {listed} listed differences")
    if LISTED and not listed and len(chosen) == len(CASES):
        click.echo("none of the listed differences was seen: drop them from LISTED")
    return int(equal < len(chosen))


def _said(told: Comparison, same: bool) -> str:
    outcome = told.outcome if same or told.outcome != EQUAL else "equal in what is discrete"
    more = f", {told.listed} listed" if told.listed else ""
    return f"{outcome}{more}" + (f" | 1 of {len(told.differences)}: {told.first}" if told.first else "")


def _timed(case: Case) -> tuple[Record | None, float]:
    before = os.times()
    found = None if missing(case) else run(case)
    return found, sum(os.times()[:4]) - sum(before[:4])


if __name__ == "__main__":
    main()
