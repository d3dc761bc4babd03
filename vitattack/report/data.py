"""Tables of all data sets and protocols, and of one in detail, with facts about its files if they are available."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitattack.core.errors import UsageError
from vitattack.core.table import Table
from vitattack.data.catalogue import DATA_SETS
from vitattack.data.protocols import PROTOCOLS
from vitattack.data.request import DataRequest, check_folder, read_request

if TYPE_CHECKING:
    from vitattack.data.dataset import DataSet

KEYS = ("name", "images", "classes", "where", "what it is")
READ_AT_MOST = 20_000
SIZES_SHOWN = 5


def data_table(data_dir: Path | None) -> tuple[Table, list[dict[str, str]]]:
    """The table of all data sets and protocols, with size and source."""
    rows = []
    for name in DATA_SETS.in_order:
        entry = DATA_SETS[name]
        rows.append((name, f"{entry.rows}", f"{entry.num_classes}", entry.location(data_dir), entry.summary))
    for name, protocol in PROTOCOLS.items():
        classes = DATA_SETS[protocol.data].num_classes
        rows.append((name, f"{protocol.images}", f"{classes}", "protocol", protocol.summary))
    return Table("data sets", KEYS, rows, left=5, line_each=True, whole=True), [
        dict(zip(KEYS, row, strict=True)) for row in rows
    ]


def data_description(text: str, data_dir: Path | None, transform: str | None = None) -> tuple[Table, dict[str, Any]]:
    """The description of a set; if its files are available, with digest, sizes and class balance, reading every image once."""
    check_folder(data_dir)
    request = read_request(text)
    content = _facts(request, data_dir)
    if request.entry is not None and not request.entry.is_at_hand(data_dir, request.part):
        return _table(text, content, {"files": "not here"}), {**content, "opened": False}
    from vitattack.data.dataset import load_data

    wanted = transform or ("none" if text.partition("[")[0] in PROTOCOLS else None)
    data = load_data(text, data_dir=data_dir, transform=wanted)
    if len(data) > READ_AT_MOST:
        if not content:
            raise UsageError(
                f"'{text}' has {len(data):,} images, many to read for a description: narrow it, as in [:1000]"
            )
        return _table(text, content, {"files": f"here, not read; {text}[:1000] would be"}), {**content, "opened": False}
    measured = _read_images(data)
    content = {**content, **measured, "opened": True}
    counts, sizes = list(measured["per_class"].values()), list(measured["image_sizes"])
    shown = {
        "image_sizes": ", ".join(sizes[:SIZES_SHOWN]) + (", ..." if len(sizes) > SIZES_SHOWN else ""),
        "per_class": f"{min(counts)} to {max(counts)}, {len(counts)} classes present",
    }
    return _table(text, content, shown), content


def _facts(request: DataRequest, data_dir: Path | None) -> dict[str, Any]:
    """Facts from the catalogue; empty for a path."""
    entry, protocol = request.entry, request.protocol
    if entry is None:
        return {}
    place = {"where": entry.location(data_dir), "origin": entry.origin}
    if protocol is None:
        facts = {"what": entry.summary, "images": entry.rows, "classes": entry.num_classes}
        return {"data": request.text, **facts, **place}
    facts = {"what": protocol.summary, "images": protocol.images, "set": protocol.data}
    return {"data": request.text, **facts, "protocol": protocol.record(), **place}


def _read_images(data: DataSet) -> dict[str, Any]:
    from vitattack.data.formats.row_sources import ImageSource

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
