"""What `models pull` and `models check` found, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from vitattack.evaluation.smoke import Look
from vitattack.evaluation.stats import Accuracy
from vitattack.report.table import Table


def pulled(rows: Sequence[dict[str, str]]) -> Table:
    keys = ("model", "from", "bytes", "sha256", "file")
    return Table("weights", keys, [tuple(row[key] for key in keys) for row in rows], left=5)


def looked(found: Look) -> Table:
    """One line per thing that was checked."""
    verdict = {True: "fits", False: "does not fit: check weights, normalisation and transform", None: "not compared"}
    rows = [
        ("file", found.file),
        ("sha256", f"{found.sha256} as {found.hash_from} says"),
        ("loaded", f"strictly, {found.parameters:,} parameters"),
        ("clean", f"{_share(found.clean)} on {found.data}" if found.clean else "no images at hand: give --data"),
        ("reported", _share(found.reported) if found.reported else "no clean accuracy"),
        ("verdict", verdict[found.fits]),
    ]
    return Table(found.model, ("", ""), rows, left=2)


def _share(accuracy: Accuracy | None) -> str:
    if accuracy is None:
        return "-"
    return f"{accuracy.accuracy:.1%} [{accuracy.low:.1%}, {accuracy.high:.1%}] (n = {accuracy.n})"
