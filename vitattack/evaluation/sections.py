"""Sections of a finished run, by the reports of its attack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vitattack.attacks import stages
from vitattack.attacks.aas.report import Referee, referee
from vitattack.attacks.auto.report import auto_doubts, auto_report
from vitattack.attacks.perceptual.report import appearance
from vitattack.attacks.spatial.report import spatial_report
from vitattack.core.table import Table
from vitattack.records.result import label
from vitattack.records.section import Run, Section
from vitattack.records.stats import Accuracy, figures, percent

LOOKS = "how the fooled images differ from their originals (means)"


def sections(run: Run) -> tuple[Section, ...]:
    """What the attack of a run shows beside its headline."""
    return (*_referee(run), *_spatial(run), *_auto(run), *_perceptual(run), *_stages(run))


def _referee(run: Run) -> Iterator[Section]:
    found = referee(run)
    if found:
        yield Section("referee", found.json(), tables=(_referee_table(f"{label(run.job.attack)}: the referee", found),))


def _referee_table(title: str, found: Referee) -> Table:
    """Clean and robust accuracy (RA); only the rows that say so are counted on the scaled model."""
    lines: list[tuple[str, Accuracy | None]] = [
        ("clean, plain model", found.clean),
        ("clean, scaled model", found.clean_scaled),
        ("RA of the base attack", found.base),
        ("RA of the attack through scaled attention", found.aas),
        ("RA of both together (headline)", found.union),
        ("RA, scaled-model protocol (CVPR 2024)", found.scaled_protocol),
        ("RA of those same examples on the plain model", found.scaled_examples),
    ]
    rows = [(name, *figures(accuracy)) for name, accuracy in lines if accuracy is not None]
    notes = []
    if found.false_successes is not None:
        notes.append(
            f"{found.false_successes} false successes (fool the scaled model only), "
            f"{found.missed} missed (fool the plain model only)"
        )
    if found.learned:
        notes += _search(dict(found.learned))
    return Table(title, ("", "accuracy", "95 %", "correct"), rows, notes)


def _search(learned: dict[str, Any]) -> list[str]:
    found = _find(learned["learned"])
    notes = [f"search: {learned['forwards']} forwards + {learned['backwards']} backwards, {learned['seconds']:.1f} s"]
    for number, scales in enumerate(found["scales"] if found else []):
        ranked = f", RA on calibration {percent(found['robust'][number])}" if found["plain"] is not None else ""
        notes.append(f"scales {number + 1}: {_text(scales)}{ranked}")
    if found and found["plain"] is not None:
        notes.append(f"without scales: RA on calibration {percent(found['plain'])}")
    return notes


def _find(learned: Any) -> Any:
    """The first scales in what an attack learned; wrappers nest it in lists."""
    if isinstance(learned, list):
        return next((found for found in map(_find, learned) if found), None)
    return learned.get("found") if isinstance(learned, dict) else None


def _text(scales: Any) -> str:
    if scales and isinstance(scales[0], list | tuple):
        return " | ".join(_text(row) for row in scales)
    return " ".join(f"{scale:.2g}" for scale in scales)


def _spatial(run: Run) -> Iterator[Section]:
    found = spatial_report(run)
    if found:
        yield Section(
            "spatial",
            found.json(),
            rows=(("shifts only", found.shifts), ("rotations only", found.rotations)),
            notes=(f"{label(run.job.attack)}: {found.note}",) if found.note else (),
        )


def _auto(run: Run) -> Iterator[Section]:
    found = auto_report(run.job, run.records)
    if found is None:
        return
    total = max(1, sum(stage.passes for stage in found.bought))
    rows = [(s.stage, str(s.tried), str(s.broke), f"{s.passes:,}", f"{s.passes / total:.0%}") for s in found.bought]
    title = f"{label(run.job.attack)} at {run.job.threat}: what each stage bought"
    yield Section(
        "auto",
        found.json(),
        notes=tuple(found.notes),
        tables=(Table(title, ("stage", "tried", "broke", "passes", "share"), rows),),
        doubts=tuple(auto_doubts(run.job, run.records)),
    )


def _perceptual(run: Run) -> Iterator[Section]:
    found = appearance(run.records)
    if found:
        lpips = "-" if found.lpips is None else f"{found.lpips:.4f}"
        measures = f"{found.l2:.3f}", f"{255 * found.linf:.2f}/255", f"{found.ssim:.4f}", lpips
        columns = ("attack", "threat", "fooled", "l2", "linf", "SSIM", "LPIPS")
        row = (label(run.job.attack), run.job.threat, str(found.n), *measures)
        yield Section("perceptual", found.json(), tables=(Table(LOOKS, columns, [row], left=2),))


def _stages(run: Run) -> Iterator[Section]:
    broken = stages.broken(run.job.attack, run.records)
    if broken:
        counts = ", ".join(f"{name} {count}" for name, count in broken.items())
        told = auto_report(run.job, run.records) is not None  # its own table says it
        doubts = tuple(stages.square_helps(run.job.attack, run.records))
        yield Section("stages", broken, notes=() if told else (f"broken by stage: {counts}",), doubts=doubts)
