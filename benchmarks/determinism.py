"""How many verdicts change with batch size, threads, shards, kills, precision and 8-bit rounding.

    OMP_WAIT_POLICY=passive python benchmarks/determinism.py --work runs/determinism

Every model is attacked once in the reference setting (batches of 64, one thread, float32) with its candidates kept. Every
other row of its table changes one thing, either for the whole run or only for the judging of those candidates, and counts
the images whose verdict flips. Runs are stored under --work, so a stopped script goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import timm
import torch
from torch import Tensor

from vitattack.core.errors import VitattackError
from vitattack.core.runtime import numerics
from vitattack.data import load_data
from vitattack.evaluation.batch_runner import BatchRunner, Outcome
from vitattack.evaluation.evaluate import evaluate
from vitattack.models.victim import Victim, frozen
from vitattack.models.views import Double
from vitattack.models.zoo.load import load_model
from vitattack.records.record import SampleRecord
from vitattack.threats.base import Threat, parse_threat

MODELS = {"tiny-vit": "linf:8/255", "tiny-cnn-standard": "linf:1/255", "tiny-vit-aas": "linf:8/255"}
ATTACKS = ("pgd(steps=10)", "apgd(steps=10)", "auto")
REFERENCE = {"batch_size": 64, "threads": 1}
RUNS: dict[str, dict[str, Any]] = {
    "batch size 256": {"batch_size": 256},
    "batch size 16": {"batch_size": 16},
    "batch size 1": {"batch_size": 1},
    "2 threads": {"threads": 2},
    "bf16-search": {"precision": "bf16-search"},
    "another seed (a yardstick)": {"seed": 1},
}
# auto costs ten times as much: a block of its images, and these rows.
AUTO_IMAGES = 256
AUTO_ROWS = {"tiny-vit": ("batch size 16", "bf16-search", "another seed (a yardstick)")}
AUTO_ROWS_OF_OTHERS = ("bf16-search",)


@dataclass(frozen=True)
class Verdicts:
    """Per image: whether it was classified correctly, and whether it was fooled."""

    clean: tuple[bool, ...]
    fooled: tuple[bool, ...]

    @classmethod
    def of(cls, records: Iterable[SampleRecord]) -> Verdicts:
        rows = sorted(records, key=lambda r: r.index)
        return cls(tuple(r.clean == r.label for r in rows), tuple(r.status == "fooled" for r in rows))

    @property
    def robust(self) -> int:
        return sum(c and not f for c, f in zip(self.clean, self.fooled, strict=True))

    def against(self, reference: Verdicts) -> str:
        """Flips of this run against the reference, as a cell of the table."""
        pairs = list(zip(reference.fooled, self.fooled, strict=True))
        lost, gained = pairs.count((True, False)), pairs.count((False, True))
        clean = sum(a != b for a, b in zip(reference.clean, self.clean, strict=True))
        text = f"{lost + gained} (-{lost} +{gained})"
        return text + (f", {clean} clean" if clean else "")


def records_of(model: str, attack: str, threat: str, data: str, out: Path, **changed: Any) -> Sequence[SampleRecord]:
    settings = REFERENCE | {"seed": 0, "device": "cpu"} | changed
    return evaluate(model, attack, threat=threat, data=data, out=out, **settings).results[0].records


def reference(
    model: str, attack: str, threat: str, data: str, out: Path
) -> tuple[Sequence[SampleRecord], dict[int, Tensor]]:
    """Records of the reference setting and the candidates of the attacked images, by row."""
    kept = out / "candidates" / f"{model}-{attack}-{data}.pt"
    if kept.exists():
        return records_of(model, attack, threat, data, out), torch.load(kept)
    found: dict[int, Tensor] = {}
    plain = BatchRunner.outcomes

    def outcomes(self: BatchRunner, *args: Any) -> list[Outcome]:
        result = plain(self, *args)
        for record, candidate in result:
            if record.clean == record.label and (record.status == "fooled" or record.index not in found):
                found[record.index] = candidate.clone()
        return result

    with patch.object(BatchRunner, "outcomes", outcomes):
        records = records_of(model, attack, threat, data, out, fresh=True)
    kept.parent.mkdir(parents=True, exist_ok=True)
    torch.save(found, kept)
    return records, found


def sharded(model: str, attack: str, threat: str, data: str, out: Path) -> Sequence[SampleRecord]:
    for number in (2, 0):
        evaluate(model, attack, threat=threat, data=data, out=out, device="cpu", shard=(number, 3), **REFERENCE)
    return records_of(model, attack, threat, data, out, shard=(1, 3))


def killed_twice(model: str, attack: str, threat: str, data: str, out: Path, lines: int) -> Sequence[SampleRecord]:
    """A run whose process is killed after about one and two thirds of its records, then resumed."""
    command = [sys.executable, "-c", "from vitattack.cli.main import main; main()", "eval", model, attack]
    command += [
        "--threat",
        threat,
        "--data",
        data,
        "--out",
        str(out),
        "--batch-size",
        "64",
        "--threads",
        "1",
        "--quiet",
    ]
    for third in (1, 2):
        process = subprocess.Popen([*command, "--device", "cpu"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while process.poll() is None and _lines(out) < third * lines // 3:
            time.sleep(0.02)
        process.kill()
        process.wait()
        print(f"    killed after {_lines(out)} of {lines} lines", file=sys.stderr)
    return records_of(model, attack, threat, data, out)


def _lines(out: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in out.glob("*/samples.jsonl"))


@torch.no_grad()
def judged(
    records: Sequence[SampleRecord], candidates: dict[int, Tensor], judge: Callable[[Tensor], Tensor], batch: int
) -> Verdicts:
    """Verdicts on the same candidates by another judge; a success still has to be one within the reference's rule."""
    rows = sorted(candidates)
    wrong: dict[int, bool] = {}
    labels = {r.index: r.label for r in records}
    for at in range(0, len(rows), batch):
        part = rows[at : at + batch]
        predicted = judge(torch.stack([candidates[row] for row in part])).argmax(1).tolist()
        wrong |= {row: answer != labels[row] for row, answer in zip(part, predicted, strict=True)}
    reference = Verdicts.of(records)
    return Verdicts(reference.clean, tuple(wrong.get(r.index, False) for r in sorted(records, key=lambda r: r.index)))


@torch.no_grad()
def clean_flips(victim: Victim, data: str) -> dict[str, int]:
    """Clean predictions that differ from those at batch size 64 in float32."""
    images = load_data(data)
    x, _ = images.read(images.rows)

    def predictions(judge: Callable[[Tensor], Tensor], batch: int) -> Tensor:
        return torch.cat([judge(part).argmax(1) for part in x.split(batch)])

    plain = predictions(victim, 64)
    others = {f"batch size {batch}": predictions(victim, batch) for batch in (256, 16, 1)}
    others["float64"] = predictions(Double(victim), 64)
    return {name: int((other != plain).sum()) for name, other in others.items()}


def rounded(candidates: dict[int, Tensor]) -> dict[int, Tensor]:
    return {row: (image * 255).round() / 255 for row, image in candidates.items()}


def outside(threat: Threat, data: str, candidates: dict[int, Tensor]) -> int:
    rows = sorted(candidates)
    x, _ = load_data(data).read(rows)
    return int((~threat.allows(x, torch.stack([candidates[row] for row in rows]), {})).sum())


def same(one: Sequence[SampleRecord], other: Sequence[SampleRecord]) -> str:
    return ", all records equal" if [r.line() for r in one] == [r.line() for r in other] else ", RECORDS DIFFER"


INTERRUPTED = ("3 shards", "killed twice, resumed")


def interrupted(
    model: str, attack: str, threat: str, data: str, work: Path, records: Sequence[SampleRecord]
) -> dict[str, str]:
    """The cells of runs in parts, whose records have to equal those of the reference in every field."""
    sharded_run = sharded(model, attack, threat, data, work / "shards" / attack)
    resumed = killed_twice(model, attack, threat, data, work / "killed" / attack, len(records))
    plain = Verdicts.of(records)
    return {
        name: Verdicts.of(found).against(plain) + same(records, found)
        for name, found in zip(INTERRUPTED, (sharded_run, resumed), strict=True)
    }


def columns(model: str, attack: str, threat: str, data: str, work: Path) -> dict[str, str]:
    """The cells of one attack on one model, by row: those of an earlier call, or computed now."""
    if attack == "auto" and "[" not in data:
        data = f"{data}[:{AUTO_IMAGES}]"
    kept = work / f"cells-{attack}-{data}.json"
    if kept.exists():
        cells: dict[str, str] = json.loads(kept.read_text())
        return cells
    cells = computed(model, attack, threat, data, work)
    kept.write_text(json.dumps(cells, indent=1))
    return cells


def computed(model: str, attack: str, threat: str, data: str, work: Path) -> dict[str, str]:
    began = time.perf_counter()
    records, candidates = reference(model, attack, threat, data, work / "reference")
    plain = Verdicts.of(records)
    attacked, correct = sum(plain.clean), plain.robust
    cells = {"reference": f"{correct} of {len(records)} robust, {attacked - correct} fooled"}
    rows = AUTO_ROWS.get(model, AUTO_ROWS_OF_OTHERS) if attack == "auto" else tuple(RUNS)
    for name, changed in RUNS.items():
        if name not in rows or ("precision" in changed and attack != "auto"):
            cells[name] = "-"
            continue
        cells[name] = Verdicts.of(
            records_of(model, attack, threat, data, work / name.split(" (")[0].replace(" ", "-"), **changed)
        ).against(plain)
    cells |= dict.fromkeys(INTERRUPTED, "-")
    if attack != "auto":
        cells |= interrupted(model, attack, threat, data, work, records)
    victim = load_model(model, torch.device("cpu")).victim
    on_grid = rounded(candidates)
    with frozen(victim):
        cells["judged: batch size 1"] = judged(records, candidates, victim, 1).against(plain)
        cells["judged: batch size 256"] = judged(records, candidates, victim, 256).against(plain)
        cells["judged: float64"] = judged(records, candidates, Double(victim), 64).against(plain)
        cells["judged: rounded to 8 bits"] = judged(records, on_grid, victim, 64).against(plain)
    cells["rounded images outside the budget"] = str(outside(parse_threat(threat), data, on_grid))
    print(f"  {model} {attack}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/determinism"))
    parser.add_argument("--data", default="cifar10-demo", help="1,000 test images by default")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--attacks", nargs="*", default=list(ATTACKS))
    args = parser.parse_args()
    print(f"torch {torch.__version__}, timm {timm.__version__}, CPU {torch.backends.cpu.get_cpu_capability()}")
    print(f"data {args.data}; reference: batches of 64, one thread, float32, seed 0")
    print(f"auto: the first {AUTO_IMAGES} images, which it compares with each other, and some of the rows")
    print("cells: images whose verdict flipped (- fooled only in the reference, + fooled only here)")
    for model in args.models:
        threat = MODELS[model]
        with numerics(1):
            table = {attack: columns(model, attack, threat, args.data, args.work / model) for attack in args.attacks}
            victim = load_model(model, torch.device("cpu")).victim
            with frozen(victim):
                clean = clean_flips(victim, args.data)
        print(f"\n{model}, {threat}\n")
        rows = list(next(iter(table.values())))
        widths = [max(map(len, rows)), *(max(len(a), *map(len, cells.values())) for a, cells in table.items())]
        for line in [["", *table], *([row, *(cells[row] for cells in table.values())] for row in rows)]:
            print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
        print("clean predictions that differ: " + ", ".join(f"{name} {count}" for name, count in clean.items()))
        sys.stdout.flush()


if __name__ == "__main__":
    try:
        main()
    except VitattackError as error:
        sys.exit(f"determinism: {error}")
