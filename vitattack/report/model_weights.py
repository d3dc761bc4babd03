"""Tables of `models pull` and `models check`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitattack.core.percent import at_least, at_most
from vitattack.core.table import Table
from vitattack.evaluation.zoo_check import ZooCheck
from vitattack.records.stats import Accuracy


def pulled_table(
    files: Mapping[str, Path], origins: Mapping[str, Mapping[str, str | None]]
) -> tuple[Table, dict[str, Any]]:
    """Return one row per model: its source, the hash of what was sent, and the file with its tensors."""
    content, rows = [], []
    for name, path in files.items():
        origin, size = origins[name], path.stat().st_size
        content.append({"model": name, **origin, "bytes": size, "file": str(path)})
        rows.append([name, origin["from"] or "-", origin["sha256"] or "-", f"{size:,}", str(path)])
    table = Table("weights", ("model", "from", "sha256 of what came", "bytes", "file"), rows, left=5)
    return table, {"schema": 1, "weights": content}


def check_table(look: ZooCheck) -> Table:
    """Return one line per property that was checked."""
    verdict = {True: "fits", False: "does not fit: check weights, normalisation and transform", None: "not compared"}
    rows = [
        ("file", look.file),
        ("sha256", f"{look.sha256} as {look.hash_from} says"),
        ("loaded", f"strictly, {look.parameters:,} parameters"),
        ("clean", f"{_share(look.clean)} on {look.data}" if look.clean else "no images at hand: give --data"),
        ("reported", _share(look.reported) if look.reported else "no clean accuracy"),
        ("verdict", verdict[look.fits]),
    ]
    return Table(look.model, ("", ""), rows, left=2)


def _share(accuracy: Accuracy | None) -> str:
    if accuracy is None:
        return "-"
    low, high = at_least(accuracy.low), at_most(accuracy.high)
    return f"{accuracy.accuracy:.1%} [{low}%, {high}%] (n = {accuracy.n})"
