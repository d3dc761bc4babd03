"""Where the files that ship with the package are: inside the wheel, or beside the package in a checkout."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).resolve().parent
ASSETS = _HERE / "assets" if (_HERE / "assets").is_dir() else _HERE.parent

ZOO_FILE = ASSETS / "model_zoo.yaml"
EMBEDDED = ASSETS / "embedded"
RECIPES = ASSETS / "benchmarks" / "train"
BENCHMARKS = ASSETS / "benchmarks"
