"""Checksum of `result.json`, so that no damage to the numbers of a finished run goes unnoticed."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from vitattack.core.files import json_text


def with_checksum(result: Mapping[str, Any]) -> dict[str, Any]:
    """The content of `result.json` with a checksum of everything else in it."""
    content = {name: value for name, value in result.items() if name != "crc"}
    try:
        return {**content, "crc": f"{zlib.crc32(json_text(content).encode()):08x}"}
    except RecursionError:  # nested by the thousand
        return {}
