"""Tests of attention; the rows of its coverage table are shared with `benchmarks/attention_table.py`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
