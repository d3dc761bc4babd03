"""Tables of a check: the verdict, every check with its figure and threshold, and what to run next."""

from __future__ import annotations

from dataclasses import replace

from vitattack.checks.check import Checked, check_result, checkable
from vitattack.core.percent import percent, span
from vitattack.core.table import Table
from vitattack.evaluation.attachments import Occasion
from vitattack.records.report_section import Section

COLUMNS = ("check", "figure", "wanted", "")


def tables(checked: Checked) -> list[Table]:
    """The checks below the verdict, and beside the number what it rests on."""
    auto = checked.auto
    title = f"{auto.job.model} | {auto.job.threat} | {auto.job.data} | n = {auto.n} | seed {auto.job.seed}"
    rows = [(item.name, item.figure, item.threshold, item.word) for item in checked.items]
    return [Table(title, COLUMNS, rows, [*_notes(checked), checked.line], left=3)]


def check_of_run(occasion: Occasion) -> Section:
    """The outcome of the checks, as a section of a result of `auto`."""
    checked = check_result(occasion.prepared, checkable(occasion.threat), occasion.result)
    (table,) = tables(checked)
    table = replace(table, title=f"Checks of {checked.auto.job.model} at {occasion.threat}")
    return Section("check", checked.json(), notes=(f"check: {checked.line}",), tables=(table,))


def _notes(checked: Checked) -> list[str]:
    auto, best = checked.auto.robust, checked.best
    lines = [f"clean {percent(checked.auto.clean.accuracy)}, robust under auto {percent(auto.accuracy)}"]
    if best.correct < auto.correct:
        lines.append(f"with what the checks broke: {percent(best.accuracy)} ({span(best.low, best.high)})")
    lines.append(f"certificate: {checked.certificate.details}")
    lines += [f"doubt: {doubt}" for doubt in checked.auto.doubts]
    for item in checked.items:
        if item.passed is False:
            lines.append(
                f"{item.name}: {item.asks} Source: {item.source}." + (f" Next: {item.next}" if item.next else "")
            )
    return lines


def details(checked: Checked) -> Table:
    """Every check with its question and the source of its threshold."""
    rows = [(item.name, item.asks, item.source) for item in checked.items]
    return Table("What each check asks", ("check", "question", "source of the threshold"), rows, left=3)
