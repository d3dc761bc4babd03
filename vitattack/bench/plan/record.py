"""Facts about data sets as plain data: `python benchmarks/record_facts.py` writes them, a test compares both."""

from __future__ import annotations

from typing import Any

from vitattack.data.catalogue import DATA_SETS
from vitattack.data.protocols import PROTOCOLS


def data_sets() -> dict[str, Any]:
    """Every data set and protocol by name: how many images, of how many classes, what may follow the name."""
    found: dict[str, Any] = {}
    for name in DATA_SETS.in_order:
        entry = DATA_SETS[name]
        found[name] = {
            "rows": entry.rows,
            "classes": entry.num_classes,
            "transform": entry.takes_transform,
            "parts": sorted(entry.parts),
            "default": entry.default_part,
            "severities": entry.severities,
            "origin": entry.origin,
            "of_imagenet": entry.of_imagenet,
        }
    for name, protocol in PROTOCOLS.items():
        whole = found[protocol.data]
        found[name] = {**whole, "rows": len(protocol.rows), "protocol": True}
    return found
