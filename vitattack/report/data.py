"""One data set described by opening it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from vitattack.data import load
from vitattack.report.table import Table


def describe(text: str, data_dir: Path | None) -> tuple[Table, dict[str, Any]]:
    """Size, digest and class balance; reads every image once, in batches."""
    data = load(text, data_dir=data_dir)
    labels: Counter[int] = Counter()
    sizes: Counter[str] = Counter()
    for rows in data.cut(256):
        x, y = data.read(rows)
        labels.update(y.tolist())
        sizes[f"{x.shape[-2]} x {x.shape[-1]}"] += len(y)
    content = {
        "data": data.text,
        "n": len(data),
        "classes": data.num_classes,
        "image_sizes": dict(sizes),
        "digest": data.digest(),
        "per_class": {str(label): labels[label] for label in sorted(labels)},
    }
    balance = f"{min(labels.values())} to {max(labels.values())}, {len(labels)} classes present"
    shown = {**content, "image_sizes": ", ".join(sizes), "per_class": balance}
    return Table(text, ("", ""), [(key, str(value)) for key, value in shown.items()], left=2), content
