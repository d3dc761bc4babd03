"""Tables of an evaluation: clean, each attack and the worst case, every number with its n, interval and cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from vitattack.core.table import Table
from vitattack.records.result import Evaluation, Result, label
from vitattack.records.stats import Accuracy, Paired, figures

COLUMNS = ("attack", "accuracy", "95 %", "correct", "fwd", "bwd", "step", "sec")


def tables(evaluation: Evaluation, verdicts: Sequence[str] = ()) -> list[Table]:
    """The table of the evaluation, `verdicts` among its notes, and those that the attacks add."""
    main = table(evaluation)
    return [replace(main, notes=[*main.notes, *verdicts]), *_of_sections(evaluation)]


def result_tables(result: Result) -> list[Table]:
    """The tables of a single result."""
    return tables(Evaluation((result,)))


def table(evaluation: Evaluation) -> Table:
    """The main table; `fwd` and `bwd` are mean passes per attacked sample, `step` is the mean step of the first success."""
    rows = [("", _row("clean", evaluation.clean))]
    for result in evaluation.results:
        rows.append((result.job.threat, _row(label(result.job.attack), result.robust, *_cost(result))))
        rows += [
            (result.job.threat, _row(f"  {name}", accuracy))
            for section in result.sections
            for name, accuracy in section.rows
        ]
    several = len(evaluation.threats) > 1
    if len(evaluation.results) > len(evaluation.threats):
        rows += [(threat, _row("worst case", evaluation.under(threat).worst_case)) for threat in evaluation.threats]
    if evaluation.union:
        rows.append(("union", _row("worst case", evaluation.union)))
    job = evaluation.job
    notes = [_paired_note(*pair) for pair in evaluation.paired()]
    notes += [note for result in evaluation.results for note in _notes(result, several)]
    notes += _coverage(evaluation)
    notes += [f"doubt: {doubt}" for doubt in evaluation.doubts]
    title = f"{job.model} | {', '.join(evaluation.threats)} | {job.data} | n = {evaluation.n} | seed {job.seed}"
    if several:
        columns = (COLUMNS[0], "threat", *COLUMNS[1:6])  # as wide as a terminal
        return Table(title, columns, [(row[0], threat, *row[1:6]) for threat, row in rows], notes, left=2)
    return Table(title, COLUMNS, [row for _, row in rows], notes)


def _row(name: str, accuracy: Accuracy, *cost: str) -> tuple[str, ...]:
    return (name, *figures(accuracy), *(cost or ("", "", "", "")))


def _cost(result: Result) -> tuple[str, str, str, str]:
    forwards, backwards = result.mean_passes
    first = result.mean_first_success
    return f"{forwards:.1f}", f"{backwards:.1f}", "-" if first is None else f"{first:.1f}", f"{result.seconds:.1f}"


def _coverage(evaluation: Evaluation) -> Iterator[str]:
    """How many classes the images are of, where not of all."""
    protocol = evaluation.results[0].provenance.get("protocol", {})
    covered, of = protocol.get("classes_covered"), protocol.get("num_classes")
    if covered and of and covered < of:
        yield f"the images are of {covered} of the {of} classes"


def _notes(result: Result, several: bool) -> Iterator[str]:
    """Notes of an attack on its run, with the budget if there are several."""
    for section in result.sections:
        yield from (f"at {result.job.threat}, {note}" if several else note for note in section.notes)


def _paired_note(strongest: str, other: str, paired: Paired) -> str:
    gain, loss = paired.only_second, paired.only_first
    return f"{label(strongest)} against {label(other)}: fools {gain} more and {loss} fewer (McNemar p = {paired.p_value:.2g})"


def _of_sections(evaluation: Evaluation) -> list[Table]:
    """The tables of all sections, grouped by kind; tables of equal title are merged."""
    found = [(section.name, t) for result in evaluation.results for section in result.sections for t in section.tables]
    kinds = list(dict.fromkeys(name for name, _ in found))
    by_title: dict[str, Table] = {}
    for _, each in sorted(found, key=lambda pair: kinds.index(pair[0])):
        before = by_title.get(each.title)
        by_title[each.title] = replace(before, rows=[*before.rows, *each.rows]) if before else each
    return list(by_title.values())
