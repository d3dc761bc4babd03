"""`eval` with the workers that this machine chooses against one thread in one process: seconds side by side, records compared.

    python benchmarks/perf/jobs.py [--model tiny-vit] [--attack auto] [--limit 512] [--rounds 3] [--jobs N]

Both ways are whole commands, start-up included, in turns, each with a store of its own. Without --jobs the second way is the
command with nothing but its defaults. The load beside it is printed, since it decides what there is to gain.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from vitattack.core.runtime import usable_cores


class Spent(NamedTuple):
    """Seconds of a whole command, and of all cores together: on idle cores one thread needs the same of both."""

    wall: float
    cores: float


def timed(words: list[str], out: Path) -> Spent:
    began, before = time.perf_counter(), os.times()
    command = [sys.executable, "-m", "vitattack.cli", "eval", *words, "--quiet", "--json", "--out", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    cores = after.children_user + after.children_system - before.children_user - before.children_system
    return Spent(time.perf_counter() - began, cores)


def stored(out: Path) -> tuple[bytes, object]:
    """The bytes of all records, and how they were made."""
    records = b"".join(path.read_bytes() for path in sorted(out.glob("*/samples.jsonl")))
    (result,) = [json.loads(path.read_text()) for path in out.glob("*/result.json")]
    return records, result["provenance"]["workers"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny-vit")
    parser.add_argument("--attack", default="auto")
    parser.add_argument("--limit", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int)
    args = parser.parse_args()
    words = [args.model, args.attack, "--limit", str(args.limit)]
    ways = {
        "one thread": ["--jobs", "1", "--threads", "1"],
        "workers": ["--jobs", str(args.jobs)] if args.jobs else [],
    }
    seconds: dict[str, list[Spent]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory(prefix="vitattack-jobs-") as folder:
        for number in range(args.rounds):
            load = os.getloadavg()[0]
            outs = {name: Path(folder) / f"{name}-{number}" for name in ways}
            for name in list(ways)[:: 1 if number % 2 == 0 else -1]:
                seconds[name].append(timed([*words, *ways[name]], outs[name]))
            (one, _), (many, how) = (stored(outs[name]) for name in ways)
            told = ", ".join(
                f"{name} {spent[-1].wall:.1f} s ({spent[-1].cores:.1f} of CPU)" for name, spent in seconds.items()
            )
            same = "same bytes" if one == many else "OTHER BYTES"
            print(f"round {number + 1}: {told}, {same}, load before {load:.1f}, {how}", flush=True)
    one_thread, workers = (statistics.median(spent.wall for spent in seconds[name]) for name in ways)
    print(f"{' '.join(words)} on {usable_cores()} cores: {one_thread / workers:.2f} times the speed of one thread")


if __name__ == "__main__":
    main()
