"""Faults: the command line is killed, its files are damaged, its folders fail, and no number may change.

    python benchmarks/faults.py                                   the whole campaign, about an hour on one core
    python benchmarks/faults.py --only kill --count 10            ten kills of every command
    python benchmarks/faults.py --only 'damage eval' --seed 7 --json faults.json

Every trial is a function of the seed, its kind and its number. Verdicts are appended to a file in --out, so that the same
command goes on where it was stopped; a change of the code starts over. What a failed trial left is kept there for inspection.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.faults.campaign import COUNTS, missing, open_bench, trial  # noqa: E402
from tests.faults.folders import Skipped  # noqa: E402
from tests.faults.tally import Verdict, table  # noqa: E402
from vitattack.records.run_index import code_state  # noqa: E402

Key = tuple[str, int]


def stored(path: Path, seed: int) -> dict[Key, Verdict]:
    """The verdicts of earlier sessions with this seed and this code."""
    known = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        content = json.loads(line)
        if (content["seed"], content["code"]) == (seed, code_state()):
            known[content["kind"], content["number"]] = Verdict(**content["verdict"])
    return known


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="KIND", action="append", help=f"kinds that begin so: {', '.join(COUNTS)}")
    parser.add_argument(
        "--count", type=int, metavar="N", help="trials of every kind; default: as many as the campaign wants"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/faults"), help="where trials work and verdicts are kept")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every verdict there")
    parser.add_argument("--numbers", metavar="N[,N...]", help="these trials of each kind, even if known")
    given = parser.parse_args()
    kinds = [kind for kind in COUNTS if not given.only or any(kind.startswith(word) for word in given.only)]
    if not kinds:
        parser.error(f"no kind begins with {' or '.join(given.only)}")
    given.out.mkdir(parents=True, exist_ok=True)
    log = given.out.absolute() / "verdicts.jsonl"
    known = stored(log, given.seed)
    wanted: list[Key] = []
    for kind in kinds:
        if (package := missing(kind)) is not None:
            print(f"{kind}: skipped, {package} is not installed")
            continue
        numbers = map(int, given.numbers.split(",")) if given.numbers else range(given.count or COUNTS[kind])
        wanted += [(kind, number) for number in numbers]
    todo = [key for key in wanted if given.numbers or key not in known]
    print(f"{len(wanted)} trials, {len(wanted) - len(todo)} of them known from before", flush=True)
    began, skipped = time.monotonic(), set()
    if todo:
        with open_bench(given.out.absolute()) as bench, log.open("a") as stream:
            for at, (kind, number) in enumerate(todo, 1):
                if kind in skipped:
                    continue
                try:
                    verdict = trial(bench, kind, number, given.seed)
                except Skipped as reason:
                    print(f"{kind}: skipped, {reason}", flush=True)
                    skipped.add(kind)
                    continue
                known[kind, number] = verdict
                content = {"seed": given.seed, "code": code_state(), "kind": kind, "number": number}
                stream.write(json.dumps({**content, "verdict": verdict.json()}) + "\n")
                stream.flush()
                elapsed = time.monotonic() - began
                word = "FAILED" if verdict.failed else "refused" if verdict.refused else "ok"
                print(f"[{at}/{len(todo)} {elapsed:.0f} s] {kind} {number}: {word}", flush=True)
                for note in verdict.notes if verdict.failed else ():
                    print(f"    {note}", flush=True)
    verdicts = [(key, known[key]) for key in wanted if key in known]
    print(f"\nseed {given.seed}, code {code_state()[:12]}, {time.monotonic() - began:.0f} s in this session\n")
    print(table((kind, verdict) for (kind, _), verdict in verdicts))
    if given.json:
        rows = [{"kind": kind, "number": number, **verdict.json()} for (kind, number), verdict in verdicts]
        given.json.write_text(json.dumps({"schema": 1, "seed": given.seed, "trials": rows}, indent=1) + "\n")
    return int(any(verdict.failed for _, verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
