"""The store under load: 50,000 images x 20 attacks, without the cost of a real model.

    python benchmarks/load.py --work runs/load

The victim is a linear model on 3 x 4 x 4 pixels and every attack is one gradient step of another length, so that nearly all of
the time is the harness's own: reading rows, judging, records, writing and flushing. Three things are measured, each in a
process of its own:

    run      one `evaluate` of all attacks into a store: microseconds per sample and attack, resident memory and open files at
             10 %, 50 % and 100 % of the records
    cells    a fifth of the records, one `evaluate` per attack as `bench` runs its cells; nothing is kept between two of them
    reprint  the finished evaluation read from its store, without torch, as `vitattack eval` does when it is run again
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ATTACKS = tuple(f"pgd(steps=1, step={0.05 * k:.2f})" for k in range(1, 21))
MARKS = (10, 50, 100)  # percent


def resident() -> float:
    """Megabytes of this process in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class Marks:
    """Memory and open files after given parts of all records."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.told = total, 0, set[int]()
        self.began, self.began_cpu = time.perf_counter(), time.process_time()

    def saw(self, count: int) -> None:
        self.done += count
        for mark in MARKS:
            if mark not in self.told and self.done >= self.total * mark / 100:
                self.told.add(mark)
                spent = (time.perf_counter() - self.began) / self.done * 1e6
                cpu = (time.process_time() - self.began_cpu) / self.done * 1e6
                state = f"{resident():5.0f} MB, {open_files()} open files"
                print(f"  {mark:3} %: {state}, {spent:.0f} us per sample ({cpu:.0f} us of CPU)", flush=True)


def run(samples: int, out: Path, together: bool) -> None:
    """Attack all images into a store, all attacks in one call or one call for each."""
    import torch

    from vitattack import Victim, evaluate
    from vitattack.evaluation.listener import EvaluationListener

    class Watching(EvaluationListener):
        def job(self, job, number, count):  # type: ignore[no-untyped-def]
            return lambda records, total: marks.saw(len(records))

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 10))
    victim = Victim(module, name="linear", num_classes=10, input_size=4).eval()
    x = torch.rand(samples, 3, 4, 4)
    with torch.no_grad():
        y = victim(x).argmax(1)
    print(f"  start: {resident():5.0f} MB, {open_files()} open files")
    marks = Marks(samples * len(ATTACKS))
    parts: Sequence[Sequence[str]] = [ATTACKS] if together else [[attack] for attack in ATTACKS]
    for part in parts:
        done = evaluate(victim, part, data=(x, y), out=out, batch_size=256, threads=1, listener=Watching())
        assert all(result.n == samples for result in done.results)
    folders = sorted(path.parent.name for path in out.glob("*/result.json"))
    (out / "folders.json").write_text(json.dumps(folders))


def reprint(out: Path) -> None:
    """Read every result back as the index does, and make the table."""
    began = time.perf_counter()
    from vitattack.records.result import Evaluation
    from vitattack.records.stored_result import read_result
    from vitattack.report.evaluation import tables

    folders = json.loads((out / "folders.json").read_text())
    evaluation = Evaluation(tuple(filter(None, (read_result(out, folder) for folder in folders))))
    assert len(evaluation.results) == len(ATTACKS)
    rows = tables(evaluation)
    spent = time.perf_counter() - began
    assert rows and "torch" not in sys.modules
    cpu = time.process_time()
    print(f"  {evaluation.n:,} x {len(folders)} attacks: {spent:.1f} s ({cpu:.1f} s of CPU), {resident():.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/load"))
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--part", choices=("run", "cells", "reprint"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part == "reprint":
        reprint(args.work / "run")
    elif args.part:
        samples = args.samples if args.part == "run" else args.samples // 5
        run(samples, args.work / args.part, together=args.part == "run")
    for part in () if args.part else ("run", "reprint", "cells"):
        print(f"{part}:", flush=True)
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--part", part], check=True)


if __name__ == "__main__":
    main()
