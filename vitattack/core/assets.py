"""Paths of the files that ship with the package: inside the wheel, or beside the package in a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
ASSETS = _PACKAGE / "assets" if (_PACKAGE / "assets").is_dir() else _PACKAGE.parent

ZOO_FILE = ASSETS / "model_zoo.yaml"
EMBEDDED = ASSETS / "embedded"
RECIPES = ASSETS / "benchmarks" / "train"
BENCHMARKS = ASSETS / "benchmarks"
