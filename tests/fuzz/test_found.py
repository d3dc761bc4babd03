"""Inputs that long runs found, as they were minimised: parsed or refused in one line since."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz import stored
from tests.fuzz.parsers import PARSERS

HUGE = 10**400  # no float
ENTRY = {"id": "a", "summary": "s", "arch": "x", "num_classes": 2, "input": 8, "weights": None, "dataset": "d"}
LATE = b"HTTP/1.1 503 x\r\nRetry-After: Thu, 01 Jan 1970 00:00:00 -" + b"9" * 20 + b"\r\n\r\n"


def dumped(content: Any) -> bytes:
    return json.dumps(content).encode()


def training(**changes: Any) -> tuple[bytes, bytes]:
    return dumped({**stored._training_result(), **changes}), b""


FOUND: list[tuple[str, Any]] = [
    ("lock file", dumped({"schema": 1, "weights": {"m": {**stored.PIN, "size": HUGE}}})),
    ("lock file", dumped({"schema": 1, "weights": {"\x1b[31m": {**stored.PIN, "size": "x"}}})),
    ("throughput", dumped({"schema": 1, "rates": {"host": {"m": HUGE}}})),
    ("training folders", training(recipe={"name": "x", "share": HUGE})),
    ("probes", dumped({**stored.PROBE, "shape": [HUGE]})),
    ("scales", dumped([[HUGE]])),
    ("http answers", ([(LATE, "all", 0)], True, True)),
    ("rows", ("file:\x00", 5)),
    ("rows", ("file:\ud800", 5)),
    ("recipes", f"base: {'a' * 5000}\n"),
    ("image processors", {"size": 224, "resample": {"height": 32}}),
    ("image processors", {"size": 224, "resample": float("inf")}),
    ("image processors", {"size": 2**31, "crop_pct": 1e-300}),
    ("image processors", {"size": {"height": 32, "width": None}, "resample": 2}),
    ("image processors", {"rescale_factor": [0.5, 0.5], "image_mean": [HUGE]}),
    ("zoo", json.dumps({"schema": 1, "models": [{**ENTRY, "normalize": {"mean": [HUGE], "std": [1]}}]})),
]


@pytest.mark.parametrize(("name", "value"), FOUND, ids=[f"{name} {k}" for k, (name, _) in enumerate(FOUND)])
def test_what_was_found_is_mended(name: str, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITATTACK_HOME", str(tmp_path / "home"))
    PARSERS[name].run(value)
