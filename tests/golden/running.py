"""Run a golden case through the public face alone, and keep its record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import vitattack

from .cases import Case, Command, Crafting, Diagnosis, Evaluation, Training
from .renaming import renamed
from .storing import Record, digest_of, digest_of_weights, one_thread
from .toy import toy

# Times, paths, keys, versions, and digests of files that hold words beside their tensors.
DROPPED = frozenset({"seconds", "hours", "run", "folder", "file", "provenance", "sha256", "weights", "key", "crc"})


def missing(case: Case) -> str | None:
    """The package a case needs and this machine lacks."""
    needs = (
        "accelerate" if isinstance(case, Training) else case.needs if isinstance(case, Evaluation | Crafting) else None
    )
    return needs if needs and find_spec(needs) is None else None


def run(case: Case) -> Record:
    with tempfile.TemporaryDirectory(prefix="golden-") as name:
        out = Path(name)
        if isinstance(case, Evaluation):
            return _evaluate(case, out)
        if isinstance(case, Crafting):
            return _craft(case)
        if isinstance(case, Diagnosis):
            return Record((), {"result": stripped(_diagnose(case))})
        return _command(case, out) if isinstance(case, Command) else _train(case, out)


def _evaluate(case: Evaluation, out: Path) -> Record:
    settings: dict[str, Any] = {"batch_size": 32, "seed": 0, **case.options}
    done = vitattack.evaluate(
        renamed(case.model),
        [renamed(case.attack)],
        threat=renamed(case.threat),
        data="cifar10-demo",
        limit=case.limit,
        threads=1,
        device="cpu",
        out=out,
        **settings,
    )
    content = done.json()
    samples: list[str] = []
    counts, learned = [], []
    for result in content["attacks"]:
        folder = Path(result["run"])
        lines = _lines(folder / "samples.jsonl")
        samples.extend(lines)
        counts.append(len(lines))
        known = folder / "learned.json"
        # recorded when the schema of the store was 1; its content has not changed since
        learned.append({**stripped(json.loads(known.read_text())), "schema": 1} if known.exists() else None)
    return Record(tuple(samples), {"counts": counts, "learned": learned, "result": stripped(content)})


def _craft(case: Crafting) -> Record:
    model, x, y = toy()
    with one_thread():
        done = vitattack.attack(renamed(case.attack), threat=renamed(case.threat))(model, x, y)
        predicted = model(done.x_adv).argmax(1)
    content = {
        "schema": 1,
        "labels": ",".join(map(str, y.tolist())),
        "fooled": int((predicted != y).sum()),
        "moved": int((done.x_adv != x).flatten(1).any(1).sum()),
        "pixels": digest_of(done.x_adv),
        "evidence": {name: digest_of(rows) for name, rows in sorted(done.evidence.items())},
    }
    return Record((), {"result": content})


def _diagnose(case: Diagnosis) -> dict[str, Any]:
    return vitattack.diagnose(renamed(case.model), limit=case.limit, threads=1, device="cpu").json()


def _command(case: Command, out: Path) -> Record:
    words = (*map(renamed, case.words), *(("--out", str(out)) if case.stores else ()))
    content: dict[str, Any] = {"result": stripped(call(words, out))}
    if case.stores and case.measures:
        content["jobs"] = _digests(out)
    return Record((), content)


def _train(case: Training, out: Path) -> Record:
    result = call((*map(renamed, case.words), "--out", str(out)), out)
    folder = Path(result["folder"])
    steps = [json.loads(line) for line in _lines(folder / "steps.jsonl")]
    weights = {name: digest_of_weights(folder / f"{name}.safetensors") for name in ("best", "last")}
    return Record((), {"digests": weights, "steps": steps, "result": stripped(result)})


def call(words: Sequence[str], folder: Path) -> Any:
    """The object that the `vitattack` command prints, run away from the user's settings."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("VITATTACK_")}
    home = {"VITATTACK_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "vitattack.cli", *words],
        env={**clean, **home},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"vitattack {' '.join(words)}\nended with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def stripped(content: Any) -> Any:
    """Without what differs from run to run."""
    if isinstance(content, dict):
        return {key: stripped(value) for key, value in content.items() if key not in DROPPED}
    return [stripped(value) for value in content] if isinstance(content, list) else content


def _lines(path: Path) -> list[str]:
    """The lines of a file, of a record file those of its records."""
    text = path.read_bytes().decode()
    assert text.endswith("\n"), f"{path.name} ends in the middle of a line"
    return [line for line in text[:-1].split("\n") if not line.startswith('{"batch":')]


def _digests(out: Path) -> dict[str, str]:
    """Every job of a store by its texts, and the digest of its samples."""
    found = {}
    for path in sorted(out.rglob("job.json")):
        job = json.loads(path.read_text())
        texts = " | ".join(str(job[key]) for key in ("model", "attack", "threat", "seed"))
        assert texts not in found, f"two jobs are {texts}"
        records = "".join(line + "\n" for line in _lines(path.parent / "samples.jsonl"))
        found[texts] = sha256(records.encode()).hexdigest()
    return found
