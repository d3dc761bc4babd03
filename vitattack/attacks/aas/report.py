"""Referee of an AAS run: accuracies on the plain model, beside those by the paper's protocol on the scaled model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vitattack.core.percent import percent
from vitattack.core.table import Table
from vitattack.records import stats
from vitattack.records.record import SampleRecord
from vitattack.records.report_section import Run, Section
from vitattack.records.result import Result, label
from vitattack.records.stats import Accuracy, figures

SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Referee:
    """Accuracies over all samples of one run, and the number of examples on which the two protocols disagree.

    `scaled_protocol` is RA_aas_scaled: examples crafted and counted on the scaled model. `scaled_examples` counts the same
    examples on the plain model. False successes fool the scaled model only, missed ones the plain model only.
    """

    clean: Accuracy
    clean_scaled: Accuracy | None
    base: Accuracy
    aas: Accuracy | None
    union: Accuracy
    scaled_protocol: Accuracy | None
    scaled_examples: Accuracy | None
    false_successes: int | None
    missed: int | None
    learned: dict[str, Any] | None
    invalid: int = 0  # samples without a valid verdict, robust in no row

    def json(self) -> dict[str, Any]:
        named = {
            "clean_orig": self.clean,
            "clean_scaled": self.clean_scaled,
            "RA_base_orig": self.base,
            "RA_aas_orig": self.aas,
            "RA_union_orig": self.union,
            "RA_aas_scaled": self.scaled_protocol,
            "RA_scaled_examples_orig": self.scaled_examples,
        }
        return {
            **{name: accuracy.json() if accuracy else None for name, accuracy in named.items()},
            "false_successes": self.false_successes,
            "missed": self.missed,
            **({"invalid": self.invalid} if self.invalid else {}),
            "search": self.learned,
        }


def referee(run: Run | Result) -> Referee | None:
    """The referee's report if the outermost attack looked through scaled attention and attacked any sample."""
    records = run.records
    attacked = [r for r in records if r.clean == r.label]
    if not any("base_fooled" in r.evidence for r in attacked):
        return None
    n = len(records)

    def robust(name: str, rows: Sequence[SampleRecord]) -> Accuracy:
        valid = [r for r in rows if r.status != "invalid"]
        kept = [r for r in valid if not _fools(r, name)]
        solid = sum(not (r.fragile and r.evidence[name]) for r in kept)
        return stats.share(len(kept), n, least=solid, most=len(kept) + len(rows) - len(valid))

    protocol = any("scaled_fooled" in r.evidence for r in attacked)
    seen = [r for r in records if "scaled_clean" in r.evidence]
    pairs = (
        [(r.evidence["scaled_fooled"], r.evidence["scaled_examples_fool_plain"]) for r in attacked] if protocol else []
    )
    return Referee(
        clean=stats.clean_accuracy(records),
        clean_scaled=stats.share(sum(bool(r.evidence["scaled_clean"]) for r in seen), n) if protocol else None,
        base=robust("base_fooled", attacked),
        aas=robust("aas_fooled", attacked) if any("aas_fooled" in r.evidence for r in attacked) else None,
        union=stats.robust_accuracy(records),
        scaled_protocol=(
            stats.share(sum(bool(r.evidence["scaled_clean"] and not r.evidence["scaled_fooled"]) for r in seen), n)
            if protocol
            else None
        ),
        scaled_examples=(
            stats.share(sum(not r.evidence["scaled_examples_fool_plain"] for r in attacked), n) if protocol else None
        ),
        false_successes=sum(bool(scaled and not plain) for scaled, plain in pairs) if protocol else None,
        missed=sum(bool(plain and not scaled) for scaled, plain in pairs) if protocol else None,
        learned=dict(run.learned) if run.learned else None,
        invalid=sum(r.status == "invalid" for r in attacked),
    )


def referee_section(run: Run) -> tuple[Section, ...]:
    """The section with the referee's report, if there is one."""
    report = referee(run)
    if report is None:
        return ()
    table = _referee_table(f"{label(run.job.attack)}: the referee", report)
    return (Section("referee", report.json(), tables=(table,)),)


def _referee_table(title: str, report: Referee) -> Table:
    """Clean and robust accuracies (RA), on the plain model unless the row says otherwise."""
    lines: list[tuple[str, Accuracy | None]] = [
        ("clean, plain model", report.clean),
        ("clean, scaled model", report.clean_scaled),
        ("RA of the base attack", report.base),
        ("RA of the attack through scaled attention", report.aas),
        ("RA of both together (headline)", report.union),
        ("RA, scaled-model protocol (CVPR 2024)", report.scaled_protocol),
        ("RA of those same examples on the plain model", report.scaled_examples),
    ]
    rows = [(name, *figures(accuracy)) for name, accuracy in lines if accuracy is not None]
    notes = []
    if report.false_successes is not None:
        notes.append(
            f"{report.false_successes} false successes (fool the scaled model only), "
            f"{report.missed} missed (fool the plain model only)"
        )
    if report.invalid:
        some = "1 sample has" if report.invalid == 1 else f"{report.invalid} samples have"
        notes.append(f"{some} no valid verdict (NaN outputs or an example outside the budget) and are robust in no row")
    if report.learned:
        notes += _search_notes(dict(report.learned))
    return Table(title, ("", "accuracy", "95 %", "correct"), rows, notes)


def _search_notes(learned: dict[str, Any]) -> list[str]:
    chosen = _first(learned["learned"], "found")
    notes = [f"search: {learned['forwards']} forwards + {learned['backwards']} backwards, {learned['seconds']:.1f} s"]
    for number, scales in enumerate(chosen["scales"] if chosen else []):
        ranked = f", RA on calibration {percent(chosen['robust'][number])}" if chosen["plain"] is not None else ""
        notes.append(f"scales {number + 1}: {_scales_text(scales)}{ranked}")
    if chosen and chosen["plain"] is not None:
        notes.append(f"without scales: RA on calibration {percent(chosen['plain'])}")
    coverage = _first(learned["learned"], "coverage")
    return [*notes, coverage] if coverage else notes


def _first(learned: Any, key: str) -> Any:
    """The first value of this name among stored findings, which wrappers nest in lists."""
    if isinstance(learned, list):
        return next((value for value in (_first(one, key) for one in learned) if value), None)
    return learned.get(key) if isinstance(learned, dict) else None


def _scales_text(scales: Any) -> str:
    if scales and isinstance(scales[0], list | tuple):
        return " | ".join(_scales_text(row) for row in scales)
    return " ".join(f"{scale:.2g}" for scale in scales)


def _fools(record: SampleRecord, name: str) -> bool:
    """Whether a success counts: it takes one confirmed by the judge, so that the union never exceeds the base."""
    return bool(record.evidence[name]) and record.status == "fooled"


def masking_verdict(union: Result, restarts: Result, base: Result, fp64: Result) -> str:
    """Verdict on gradient masking by underflow, from paired tests against restarts and double precision."""
    gain = stats.mcnemar(restarts.records, union.records)
    double = stats.mcnemar(base.records, fp64.records)
    left = stats.mcnemar(fp64.records, union.records)
    beaten = gain.only_first > gain.only_second and gain.p_value < SIGNIFICANT
    closed = double.only_first > double.only_second and double.p_value < SIGNIFICANT and left.p_value >= SIGNIFICANT
    spent, ours = (sum(stats.mean_passes(run.records)) for run in (restarts, union))
    figures = (
        f"against {restarts.job.attack} it fools {gain.only_first} more and {gain.only_second} fewer (p = {gain.p_value:.2g}); "
        f"passes per attacked sample {spent:.0f} and {ours:.0f} plus the search; "
        f"double precision fools {double.only_first} more and {double.only_second} fewer than float32 (p = {double.p_value:.2g})"
    )
    if beaten and closed:
        return f"masking by underflow is shown: {figures}"
    if beaten:
        return f"the scaled views find more than restarts do, but double precision does not: no underflow; {figures}"
    return f"no masking is shown: {figures}"
