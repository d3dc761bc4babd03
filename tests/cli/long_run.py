"""A command of many small batches, to be stopped in the middle, and the records it leaves."""

from __future__ import annotations

from pathlib import Path

RUN = (
    "eval",
    "tiny-vit",
    "restarts(2, pgd(steps=6))",
    "--limit",
    "32",
    "--batch-size",
    "4",
    "--threads",
    "1",
    "--quiet",
)


def records_of(root: Path) -> bytes:
    (path,) = root.glob("runs/*/samples.jsonl")
    return path.read_bytes()
