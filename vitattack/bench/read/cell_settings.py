"""Settings of cells as a benchmark file may write them: in `defaults`, in a model's row, in `set` of an override."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import Any

from vitattack.bench.read.unopened_data import look_up_data
from vitattack.bench.schema import CellSettings
from vitattack.text.image_transform import parse_transform
from vitattack.text.yaml_lines import Item, checked

SETTINGS = tuple(field.name for field in fields(CellSettings))
MOST_THREADS = 1024


def read_settings(item: Item, what: str) -> dict[str, Any]:
    """The settings in a mapping that holds nothing else; `what` names it in messages."""
    return settings_among(item.keys(what, SETTINGS))


def settings_among(items: dict[str, Item]) -> dict[str, Any]:
    """The settings among the keys of a mapping, checked."""
    return {key: _value(key, item) for key, item in items.items() if key in SETTINGS}


def _value(key: str, item: Item) -> Any:
    if key in ("batch_size", "limit", "threads"):
        return item.whole(key, 1, MOST_THREADS if key == "threads" else 10**9)
    if key == "perceptual":
        return item.truth(key)
    text = item.text(key)
    checked(item, partial(look_up_data if key == "calibration" else parse_transform, text))
    return text
