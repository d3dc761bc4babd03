"""Fuzzed JSON files that vitattack writes and reads again, other than records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from safetensors.torch import save

from tests.fuzz.guard import expect
from tests.fuzz.mutations import edited_bytes, edited_json
from tests.fuzz.target import Target, emptied, scratch, written
from vitattack.attacks import attack_text
from vitattack.attacks.aas.controls import read_scales
from vitattack.bench.options import BenchOptions
from vitattack.bench.plan import throughput
from vitattack.bench.run.stored_cells import StoredCells, result_in
from vitattack.core.file_hashes import FOLDER, FileState, remembered_sha256
from vitattack.core.files import cache_home, file_sha256
from vitattack.evaluation import reuse
from vitattack.models.weights import cache as weights_cache
from vitattack.models.weights.sources import WeightSources
from vitattack.text.syntax import AttackSyntax
from vitattack.train.courses import load_recipe
from vitattack.train.loop.logs import read_rows
from vitattack.train.run_folder import finished_run

PIN = {"sha256": "0" * 64, "size": 12, "source": "https://example.com/w.pt", "date": "2026-01-01", "revision": None}


def _scales(data: bytes) -> None:
    scales = read_scales(written("scales.json", data))
    attack_text.example_attack(attack_text.with_scales(AttackSyntax.of("aas(pgd)"), scales))


def _pins(data: bytes) -> None:
    cache_home().mkdir(parents=True, exist_ok=True)
    weights_cache.pin_file().write_bytes(data)
    try:
        pins = weights_cache.read_pins()
        expect(all(isinstance(pin.sha256, str) and isinstance(pin.size, int) for pin in pins.values()), "no pin")
    finally:
        weights_cache.pin_file().unlink()


def _weights_note(data: bytes) -> None:
    folder = cache_home() / "weights"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "m.safetensors").write_bytes(_TENSORS)
    (folder / "m.json").write_bytes(data)
    sources = WeightSources(("https://example.com/w.pt",), sha256="0" * 64)
    weights_cache.cached_weights(sources, "m")
    weights_cache.weights_location(sources, "m")
    expect(all(isinstance(name, str) for name in weights_cache.cached_names()), "a name that is none")


_TENSORS = save({"w": torch.zeros(2)})


def _note_seed() -> dict[str, Any]:
    path = written("m.safetensors", _TENSORS)
    about = {"size": path.stat().st_size, "sha256": file_sha256(path), "date": PIN["date"]}
    return {"name": "m", "source": PIN["source"], "original": "0" * 64, "weights_key": [], **about}


def _throughput(data: bytes) -> None:
    cache_home().mkdir(parents=True, exist_ok=True)
    (cache_home() / throughput.FILE).write_bytes(data)
    rate = throughput.MeasuredRates("cpu").of("tiny-vit", 1)
    expect(rate is None or rate.flops_per_second > 0, f"{rate}")


def _hash_note(data: bytes) -> None:
    """Whatever the note beside it says, a file has the hash of its content."""
    path = scratch() / "hashed.bin"
    if not path.exists():
        path.write_bytes(b"content")
    folder = cache_home() / FOLDER
    for note in folder.glob("*.json") if folder.is_dir() else ():
        note.write_bytes(data)
    expect(remembered_sha256(path) == file_sha256(path), "a wrong hash")


@cache
def _training_result() -> Mapping[str, Any]:
    row = {"epoch": 1, "step": 4, "loss": 0.5, "clean": 0.5, "robust": 0.25, "seconds": 1.0}
    sizes = {
        name: {"file": f"{name}.safetensors", "size": len(_TENSORS), "sha256": "0" * 64} for name in ("best", "last")
    }
    about = {"chosen_by": "robust", "num_classes": 10, "parameters": 100, "hours": 0.5, "adapter": None}
    return {"schema": 1, "recipe": load_recipe("tiny-vit").json(), "weights": sizes, **about, "best": row, "last": row}


def _training_folder(value: tuple[bytes, bytes]) -> None:
    folder = emptied("training")
    result, rows = value
    for name in ("best", "last"):
        (folder / f"{name}.safetensors").write_bytes(_TENSORS)
    (folder / "result.json").write_bytes(result)
    (folder / "epochs.jsonl").write_bytes(rows)
    run = finished_run(folder)
    if run is not None:
        expect(isinstance(run.result["num_classes"], int), "no number of classes")
    read_rows(folder / "epochs.jsonl")


def training_folders() -> st.SearchStrategy[tuple[bytes, bytes]]:
    row = json.dumps(_training_result()["best"]).encode() + b"\n"
    return st.tuples(edited_json([_training_result()]), edited_bytes([row * 2, row, b""]))


def _probe(data: bytes) -> None:
    stored = reuse._stored(written(reuse.FILE, data).parent)
    if stored is not None:
        rows, logits = stored
        expect(all(isinstance(row, int) for row in rows) and logits.dtype is torch.float32, "no logits")


PROBE = {"schema": 1, "rows": [0, 1], "shape": [2, 2], "float32": "AAAAAAAAgD8AAABAAABAQA=="}


def _cells(data: bytes) -> None:
    root = emptied("store")
    (root / "cells.jsonl").write_bytes(data)
    index = StoredCells(BenchOptions(store=root))
    for mark in ("0" * 32, "1"):
        index.folder(mark)


def _result(data: bytes) -> None:
    folder = emptied("job")
    (folder / "samples.jsonl").write_bytes(b"{}\n" * 4)
    (folder / "result.json").write_bytes(data)
    result_in(folder)


def _result_seed() -> dict[str, Any]:
    accuracy = {"value": 50.0, "low": 10.0, "high": 90.0, "correct": 2, "n": 4}
    about = {"schema": 1, "key": "0" * 16, "job": {"model": "m"}, "n": 4, "lines": 4, "doubts": ["x"], "sections": []}
    return {**about, "clean": accuracy, "robust": accuracy, "seconds": 1.0, "provenance": {"torch": "2", "timm": "1"}}


RATES = {"schema": 1, "rates": {throughput.host("cpu", 1): {"tiny-vit": 1e9}}}


def _hash_note_seed() -> dict[str, Any]:
    return {"state": asdict(FileState.of(Path(__file__))), "sha256": "0" * 64}


LEARNED = {"schema": 1, "attack": "aas(pgd)", "learned": {"found": {"scales": [[0.5, 0.25]]}}, "forwards": 3}

TARGETS = (
    Target("scales", lambda: edited_json([[[0.5, 0.3], [1, 2]], [0.5], LEARNED]), _scales),
    Target("lock file", lambda: edited_json([{"schema": 1, "weights": {"m": PIN, "rb/x": PIN}}]), _pins),
    Target("notes of weights", lambda: edited_json([_note_seed()]), _weights_note),
    Target("throughput", lambda: edited_json([RATES]), _throughput),
    Target("notes of hashes", lambda: edited_json([_hash_note_seed()]), _hash_note),
    Target("training folders", training_folders, _training_folder),
    Target("probes", lambda: edited_json([PROBE]), _probe),
    Target("cell index", lambda: edited_bytes([b'{"cell": "00", "folder": "x"}\n' * 2]), _cells),
    Target("results", lambda: edited_json([_result_seed()]), _result),
)
