"""Successes per stage of a staged attack, counted from its records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from vitattack.attacks.catalogue import ATTACKS, Entry
from vitattack.records.record import SampleRecord
from vitattack.records.report_section import Run, Section

# AutoAttack's threshold: Square breaking more than this share of all samples casts doubt on the white-box stages.
SQUARE_SHARE = 0.002


def stage_section(names: Sequence[str], run: Run, *, in_notes: bool = True) -> tuple[Section, ...]:
    """The section of an attack with these stages; `in_notes=False` if a table already shows the counts."""
    if not names:
        return ()
    broken = broken_by(names, run.records)
    counts = ", ".join(f"{name} {count}" for name, count in broken.items())
    notes = (f"broken by stage: {counts}",) if in_notes else ()
    return (Section("stages", broken, notes=notes, doubts=square_doubts(broken, len(run.records))),)


def broken_by(names: Sequence[str], records: Sequence[SampleRecord]) -> dict[str, int]:
    """Count the samples broken by each stage; stages of the same name are counted together."""
    counts = Counter(int(r.evidence.get("stage", -1)) for r in records if r.status == "fooled")
    broken: Counter[str] = Counter()
    for number, name in enumerate(names):
        broken[name] += counts[number]
    return dict(broken)


def square_doubts(broken: Mapping[str, int], n: int) -> tuple[str, ...]:
    """AutoAttack's warning that a black-box stage broke samples which gradient stages had left."""
    entries = [_entry(name) for name in broken]
    gradients = [number for number, entry in enumerate(entries) if entry is None or not entry.black_box]
    late = sum(
        count
        for number, (entry, count) in enumerate(zip(entries, broken.values(), strict=True))
        if gradients and number > gradients[0] and entry is ATTACKS["square"]
    )
    if late <= SQUARE_SHARE * n:
        return ()
    return (
        f"square broke {late} of {n} samples that the gradient stages before it left: gradients may be "
        "masked; try more queries, restarts, another loss or an attack made for this defence",
    )


def _entry(stage: str) -> Entry | None:
    """The catalogue entry of a stage, if it has one; the AutoAttack package writes apgd-ce for apgd_ce."""
    name = stage.partition("(")[0].replace("-", "_")
    return ATTACKS[name] if name in ATTACKS else None  # noqa: SIM401  # a registry has no get
