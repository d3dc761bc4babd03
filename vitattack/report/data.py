"""What there is to evaluate on, and one data set or protocol described, from its files where they are at hand."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from vitattack.core.errors import UsageError
from vitattack.core.table import Table
from vitattack.data import DataSet, load
from vitattack.data.catalogue import CATALOGUE
from vitattack.data.formats.row_sources import ImageSource
from vitattack.data.protocols import PROTOCOLS
from vitattack.data.rows import split

KEYS = ("name", "images", "classes", "where", "what it is")
READ_AT_MOST = 20_000


def listing(data_dir: Path | None) -> tuple[Table, list[dict[str, str]]]:
    """Every data set and protocol with its size and where it would come from."""
    rows = [
        (name, f"{entry.rows}", f"{entry.num_classes}", entry.where(data_dir), entry.summary)
        for name, entry in CATALOGUE.items()
    ]
    for name, protocol in PROTOCOLS.items():
        entry = CATALOGUE[protocol.data]
        rows.append((name, f"{len(protocol.rows)}", f"{entry.num_classes}", "protocol", protocol.summary))
    return Table("data sets", KEYS, rows, left=5), [dict(zip(KEYS, row, strict=True)) for row in rows]


def describe(text: str, data_dir: Path | None, transform: str | None = None) -> tuple[Table, dict[str, Any]]:
    """What is known of a set; with its files also digest, sizes and class balance: every image is read once."""
    content = _known(text, data_dir)
    if content and not _here(text, data_dir):
        return _table(text, content, {"files": "not here"}), {**content, "opened": False}
    wanted = transform or ("none" if text.partition("[")[0] in PROTOCOLS else None)
    data = load(text, data_dir=data_dir, transform=wanted)
    if len(data) > READ_AT_MOST:
        if not content:
            raise UsageError(
                f"'{text}' has {len(data):,} images, many to read for a description: narrow it, as in [:1000]"
            )
        return _table(text, content, {"files": f"here, not read; {text}[:1000] would be"}), {**content, "opened": False}
    read = _read(data)
    content = {**content, **read, "opened": True}
    labels = list(read["per_class"].values())
    shown = {
        "image_sizes": ", ".join(list(read["image_sizes"])[:5]) + (", ..." if len(read["image_sizes"]) > 5 else ""),
        "per_class": f"{min(labels)} to {max(labels)}, {len(labels)} classes present",
    }
    return _table(text, content, shown), content


def _known(text: str, data_dir: Path | None) -> dict[str, Any]:
    name = split(text)[0].partition("@")[0]
    head = name.partition("/")[0]
    if name in PROTOCOLS:
        protocol = PROTOCOLS[name]
        entry = CATALOGUE[protocol.data]
        known = {
            "what": protocol.summary,
            "images": len(protocol.rows),
            "set": protocol.data,
            "protocol": protocol.record(),
        }
        return {"data": text, **known, "where": entry.where(data_dir), "origin": entry.origin}
    if head in CATALOGUE:
        entry = CATALOGUE[head]
        known = {"what": entry.summary, "images": entry.rows, "classes": entry.num_classes}
        return {"data": text, **known, "where": entry.where(data_dir), "origin": entry.origin}
    return {}


def _here(text: str, data_dir: Path | None) -> bool:
    name = split(text)[0].partition("@")[0]
    if name in PROTOCOLS:
        return CATALOGUE[PROTOCOLS[name].data].here(data_dir)
    head, _, part = name.partition("/")
    return CATALOGUE[head].here(data_dir, part)


def _read(data: DataSet) -> dict[str, Any]:
    labels: Counter[int] = Counter()
    sizes: Counter[str] = Counter()
    step = 1 if isinstance(data.source, ImageSource) else 256  # image files may differ in size
    for rows in data.cut(step):
        x, y = data.read(rows)
        labels.update(y.tolist())
        sizes[f"{x.shape[-2]} x {x.shape[-1]}"] += len(y)
    return {
        "data": data.text,
        "n": len(data),
        "classes": data.num_classes,
        "image_sizes": dict(sizes),
        "digest": data.digest(),
        "per_class": {str(label): labels[label] for label in sorted(labels)},
    }


def _table(text: str, content: dict[str, Any], shown: dict[str, Any]) -> Table:
    flat = {**{k: v for k, v in content.items() if k != "protocol"}, **content.get("protocol", {}), **shown}
    return Table(text, ("", ""), [(key, str(value)) for key, value in flat.items() if key != "opened"], left=2)
