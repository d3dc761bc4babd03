"""Fuzzing of every parser for as long as asked: nothing is executed, nothing raw is raised, nothing grows without end.

    python benchmarks/fuzz.py --minutes 10                     every parser in turn, each in a process of its own
    python benchmarks/fuzz.py --minutes 10 --only torch files  one parser
    python benchmarks/fuzz.py --only attacks --repro "('pgd(steps=1e400)', 'linf:8/255')"

A failure is minimised by hypothesis and printed as a command that repeats it; the parser then goes on, and further inputs
that fail at the same place in the same way are only counted. Inputs follow from --seed.
"""

from __future__ import annotations

import argparse
import ast
import faulthandler
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the strategies live beside the tests
os.environ["VITATTACK_HOME"] = tempfile.mkdtemp(prefix="vitattack-fuzz-home-")

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.guard import Bad
from tests.fuzz.parsers import PARSERS
from tests.fuzz.target import Target, scratch

FIRST_BATCH, LARGEST_BATCH = 25, 500  # inputs per run of hypothesis, more while it is fast
HUNG = 120.0  # seconds for one input, after which the process ends with its stack
LONGEST_REPRO = 20_000
SHOWN = 12  # outcomes


class Campaign:
    """Inputs of one parser, their outcomes, and the faults they found."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.outcomes, self.faults = Counter[str](), Counter[str]()
        self._batch = FIRST_BATCH
        self._last = scratch() / "last-input.txt"

    def try_one(self, value: Any) -> None:
        self._last.write_text(repr(value)[:LONGEST_REPRO], errors="backslashreplace")
        faulthandler.dump_traceback_later(HUNG, exit=True)
        try:
            outcome = self.target.run(value)
        except Bad as error:
            sign = _sign(error)
            if sign in self.faults:  # known: counted, not minimised again
                self.faults[sign] += 1
                return
            self._failing = (sign, value, error)
            raise
        finally:
            faulthandler.cancel_dump_traceback_later()
        self.outcomes[outcome] += 1

    def batch(self, number: int) -> None:
        """Some hundred inputs; a fault ends it, is minimised and reported."""

        @seed(number)
        @settings(
            max_examples=self._batch,
            database=None,
            deadline=None,
            report_multiple_bugs=False,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @given(self.target.inputs())
        def check(value: Any) -> None:
            self.try_one(value)

        try:
            check()
        except Bad:
            sign, value, error = self._failing
            self.faults[sign] += 1
            print(f"\nFAULT in {self.target.name}: {error}", file=sys.stdout)
            print(f"    {sign}")
            print(f"    {_repro(self.target.name, value)}", flush=True)

    def run(self, minutes: float, first_seed: int) -> None:
        began, told, number = time.monotonic(), time.monotonic(), first_seed
        while time.monotonic() - began < minutes * 60:
            start = time.monotonic()
            self.batch(number)
            number += 1
            if time.monotonic() - start < 2:
                self._batch = min(2 * self._batch, LARGEST_BATCH)
            if time.monotonic() - told > 20:
                told = time.monotonic()
                self._tell(told - began, end="\r" if sys.stderr.isatty() else "\n")
        self._report(time.monotonic() - began)

    def _tell(self, seconds: float, end: str) -> None:
        count = self.outcomes.total()
        print(
            f"{self.target.name}: {count:,} inputs, {len(self.outcomes)} outcomes, {seconds:.0f} s",
            file=sys.stderr,
            end=end,
        )

    def _report(self, seconds: float) -> None:
        count, parsed = self.outcomes.total(), self.outcomes["parsed"]
        print(
            f"{self.target.name}: {count:,} inputs in {seconds / 60:.1f} min, {parsed:,} parsed, {len(self.outcomes)} outcomes, "
            f"{len(self.faults)} faults ({self.faults.total():,} inputs)"
        )
        for outcome, times in self.outcomes.most_common(SHOWN):
            print(f"    {times:9,}  {outcome}")
        if len(self.outcomes) > SHOWN:
            rest = sum(times for _, times in self.outcomes.most_common()[SHOWN:])
            print(f"    {rest:9,}  {len(self.outcomes) - SHOWN} further refusals")
        sys.stdout.flush()


def _sign(error: Bad) -> str:
    """The kind of a fault and the place it comes from, to tell one fault from another."""
    cause = error.__cause__ or error.__context__
    frames = traceback.extract_tb(cause.__traceback__) if cause is not None else []
    own = [frame for frame in frames if "/vitattack/" in frame.filename or "/tests/fuzz/" in frame.filename]
    place = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "?"
    kind = " ".join(str(error).split()[:2]) if cause is not None else str(error)[:40]
    return f"{kind} at {place}"


def _repro(name: str, value: Any) -> str:
    text = repr(value)
    if len(text) > LONGEST_REPRO:
        return f"(an input of {len(text):,} characters: run with the same --seed)"
    return f"python benchmarks/fuzz.py --only {shlex.quote(name)} --repro {shlex.quote(text)}"


def repeat(target: Target, text: str) -> None:
    """Run one input and show what it does."""
    value = ast.literal_eval(text)
    try:
        print(target.run(value))
    except Bad:
        traceback.print_exc()
        sys.exit(1)


def each_in_turn(args: argparse.Namespace, names: list[str]) -> int:
    """One process per parser, so that a crash of one decoder costs its own rest only."""
    crashed = 0
    for name in names:
        command = [
            sys.executable,
            __file__,
            "--minutes",
            str(args.minutes),
            "--seed",
            str(args.seed),
            "--only",
            *name.split(),
        ]
        done = subprocess.run(command)
        if done.returncode:
            crashed += 1
            print(
                f"CRASH in {name}: exit {done.returncode}; see {tempfile.gettempdir()}/vitattack-fuzz-*/last-input.txt"
            )
    return crashed


def main() -> None:
    warnings.simplefilter("ignore")  # of decoders about what they are given, and of hypothesis about long seeds
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="per parser")
    parser.add_argument("--only", nargs="+", metavar="WORD", help=f"one of: {', '.join(PARSERS)}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repro", help="an input as a Python literal")
    args = parser.parse_args()
    name = " ".join(args.only or ())
    if args.only and name not in PARSERS:
        parser.error(f"no parser '{name}': choose one of {', '.join(PARSERS)}")
    if args.repro is not None:
        repeat(PARSERS[name], args.repro)
        return
    if not args.only:
        sys.exit(each_in_turn(args, list(PARSERS)))
    size = Path("/proc/self/statm")
    if size.exists():  # a bomb ends in a MemoryError here, not in the machine's
        used = int(size.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 30), resource.RLIM_INFINITY))
    Campaign(PARSERS[name]).run(args.minutes, args.seed * 1_000_000)


if __name__ == "__main__":
    main()
