"""The referee's table of one AAS run."""

from __future__ import annotations

from typing import Any

from vitattack.attacks.aas.report import Referee
from vitattack.core.table import Table
from vitattack.records.stats import Accuracy
from vitattack.report.evaluation import interval, percent


def table(title: str, found: Referee) -> Table:
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
    rows = [(name, percent(a.accuracy), interval(a), f"{a.correct}/{a.n}") for name, a in lines if a is not None]
    notes = []
    if found.false_successes is not None:
        notes.append(
            f"{found.false_successes} false successes (fool the scaled model only), "
            f"{found.missed} missed (fool the plain model only)"
        )
    if found.learned:
        notes += _search(found.learned)
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
