"""Names of parts of blocks, without torch."""

from __future__ import annotations

from typing import Literal

Part = Literal["attention", "mlp", "block"]
