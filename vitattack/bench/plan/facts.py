"""Facts about data sets for those who must not import torch, recorded in embedded/facts.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from vitattack.core.assets import EMBEDDED
from vitattack.core.errors import VitattackError

FILE = EMBEDDED / "facts.json"


@dataclass(frozen=True)
class DataFacts:
    """How large a data set is, and what may follow its name."""

    rows: int
    classes: int
    transform: bool
    parts: tuple[str, ...]
    default: str
    severities: bool
    of_imagenet: bool  # a model of all 1,000 classes may be asked among its classes
    origin: str
    protocol: bool = False


@cache
def _content() -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(FILE.read_text())
    except (OSError, ValueError) as error:
        raise VitattackError(f"cannot read {FILE} ({error}): install vitattack again") from error
    return content


@cache
def data_sets() -> Mapping[str, DataFacts]:
    found = _content()["data"].items()
    return MappingProxyType({name: DataFacts(**{**said, "parts": tuple(said["parts"])}) for name, said in found})
