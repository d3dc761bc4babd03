"""Time the commands that have nothing to compute: a finished run, lists, and mistakes.

    python benchmarks/perf/startup.py [--repeat 5] [--against /other/checkout/.venv/bin/vitattack]

Prints median wall and CPU time of each command, its goal on an idle core, and its ratio to the other program.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

STORED = ("eval", "tiny-vit", "fgsm", "--limit", "16", "--threads", "1", "--quiet")
COMMANDS: dict[str, tuple[tuple[str, ...], float]] = {
    "stored eval": (STORED, 0.7),
    "stored eval --json": ((*STORED, "--json"), 0.7),
    "unknown command": (("evall",), 0.7),
    "unknown model": (("eval", "tiny-vitt"), 0.7),
    "unknown attack": (("eval", "tiny-vit", "pgdd"), 0.7),
    "unknown threat": (("eval", "tiny-vit", "pgd", "--threat", "linff:1/255"), 0.7),
    "unknown data set": (("eval", "tiny-vit", "pgd", "--data", "cifar99"), 0.7),
    "missing file": (("eval", "nowhere.pt", "pgd", "--arch", "vit_tiny_patch16_224", "--normalize", "none"), 0.7),
    "bad option": (("eval", "tiny-vit", "--bogus"), 0.7),
    "models list": (("models", "list"), 0.7),
    "data list": (("data", "list"), 0.7),
    "attacks list": (("attacks", "list"), 3.5),
}


class Time(NamedTuple):
    wall: float
    cpu: float


def timed(program: list[str], words: tuple[str, ...], folder: Path, repeat: int) -> Time:
    """Median times of a command."""
    times = []
    for _ in range(repeat):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        subprocess.run([*program, *words], cwd=folder, env=environment, capture_output=True, check=False)
        wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(Time(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    return Time(statistics.median(t.wall for t in times), statistics.median(t.cpu for t in times))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--against", metavar="PROGRAM", help="The vitattack command of another checkout.")
    asked = parser.parse_args()
    programs = [[sys.executable, "-m", "vitattack.cli"], *([[asked.against]] if asked.against else [])]
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name, str(number)) for number in range(len(programs))]
        for program, folder in zip(programs, folders, strict=True):
            folder.mkdir()
            timed(program, STORED, folder, 1)  # the run that is printed afterwards
        for what, (words, goal) in COMMANDS.items():
            found = [timed(p, words, folder, asked.repeat) for p, folder in zip(programs, folders, strict=True)]
            other = f"  other {found[1].wall:5.2f} s, {found[1].wall / found[0].wall:4.1f} x" if asked.against else ""
            print(
                f"{what:20s} {found[0].wall:5.2f} s wall {found[0].cpu:5.2f} s CPU  goal {goal:.1f} s{other}",
                flush=True,
            )


if __name__ == "__main__":
    main()
