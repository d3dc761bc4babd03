"""Tests of views for transfer; families are those of the coverage table of attention."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
