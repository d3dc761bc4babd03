"""What `models pull` and `models check` found, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitattack.core.table import Table
from vitattack.evaluation.zoo_check import Look
from vitattack.records.stats import Accuracy


def pulled(found: Mapping[str, Path], origins: Mapping[str, Mapping[str, str | None]]) -> tuple[Table, dict[str, Any]]:
    """One row per model: the file its tensors are read from, and what came in."""
    content, rows = [], []
    for name, path in found.items():
        origin, size = origins[name], path.stat().st_size
        content.append({"model": name, **origin, "bytes": size, "file": str(path)})
        rows.append([name, origin["from"] or "-", origin["sha256"] or "-", f"{size:,}", str(path)])
    table = Table("weights", ("model", "from", "sha256 of what came", "bytes", "file"), rows, left=5)
    return table, {"schema": 1, "weights": content}


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
