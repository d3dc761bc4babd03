"""Kill a command at a random moment, run it again until it ends, and compare with a run that nobody disturbed."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .launcher import TIMEOUT, Ended, Launcher, Processes, Running, Zygote, finish, send
from .outcome import Outcome, doubled, outcome, record_files, sizes, unclean
from .tally import Verdict
from .workshop import Case, Workshop

SIGNALS = (signal.SIGKILL,) * 6 + (signal.SIGTERM, signal.SIGINT)
CODES = {signal.SIGTERM: (143, -15), signal.SIGINT: (130,)}
AGAIN = 3  # kills of one trial, at most


@dataclass(frozen=True)
class Reference:
    """An undisturbed run of a case: its outcome, its folder, and how long it took and how often it changed a file."""

    outcome: Outcome
    folder: Path
    seconds: float
    changes: int
    records: dict[str, bytes]


@dataclass
class Bench:
    """The workshop with its launchers, and one reference per case."""

    workshop: Workshop
    zygote: Zygote
    processes: Processes
    references: dict[str, Reference] = field(default_factory=dict)

    def launcher(self, case: Case) -> Launcher:
        return self.zygote if case.forked else self.processes

    def start(
        self, case: Case, words: tuple[str, ...], folder: Path, patches: Mapping[str, Any] | None = None
    ) -> Running:
        return self.launcher(case).start(words, folder, folder / "home", {**case.patches, **(patches or {})})

    def run(self, case: Case, words: tuple[str, ...], folder: Path, patches: Mapping[str, Any] | None = None) -> Ended:
        return finish(self.start(case, words, folder, patches), timeout=TIMEOUT if case.forked else 4 * TIMEOUT)

    def finish_all(self, case: Case, folder: Path, patches: Mapping[str, Any] | None = None) -> Ended:
        """Run all commands of a case; returns the first end that is none, or else the last."""
        for words in case.commands:
            ended = self.run(case, words, folder, patches)
            if ended.code:
                break
        return ended

    def slot(self, case: Case) -> str:
        """The folder that references run in: the index of a store knows a command by the folder it is called in."""
        return f"slot-{case.name.replace(' ', '-')}"

    def reference(self, case: Case) -> Reference:
        if case.name not in self.references:
            folder = self.workshop.place(self.slot(case), case)
            counting = folder / "changes"
            patch = {"die_at": {"n": 0, "signal": 9, "below": str(folder), "count": str(counting)}}
            seconds, changes = 0.0, 0
            for words in case.commands:
                ended = self.run(case, words, folder, patch if case.forked else None)
                if ended.code:
                    raise RuntimeError(f"{case.name} does not even run undisturbed:\n{ended.err}")
                seconds = max(seconds, ended.seconds)
                changes = max(changes, int(counting.read_text()) if case.forked else 0)
            counting.unlink(missing_ok=True)
            done = outcome(folder, ended)
            if done.numbers is None:
                raise RuntimeError(f"{case.name} printed no JSON: {ended.out[:300]}")
            kept = folder.with_name(f"reference-{folder.name}")
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(folder, kept)
            self.references[case.name] = Reference(done, kept, seconds, changes, record_files(kept))
        return self.references[case.name]


def whole(content: bytes, undisturbed: bytes) -> int:
    """Bytes of the complete lines that a file and its undisturbed twin begin with."""
    length = 0
    for line, twin in zip(content.splitlines(keepends=True), undisturbed.splitlines(keepends=True), strict=False):
        if line != twin or not line.endswith(b"\n"):
            break
        length += len(line)
    return length


def kill(bench: Bench, case: Case, name: str, luck: random.Random) -> Verdict:
    """One trial: up to three kills, then runs to the end, then once more from the store."""
    reference, verdict = bench.reference(case), Verdict()
    folder = bench.workshop.place(name, case)
    stages = list(case.commands)
    kills = 1 + (luck.random() < 0.35) + (luck.random() < 0.15)
    victims = sorted(luck.choices(range(len(stages)), k=kills))
    last: Ended | None = None
    for number, words in enumerate(stages):
        for _ in range(victims.count(number)):
            _killed(bench, case, words, folder, luck, verdict, reference)
        last = _resumed(bench, case, words, folder, verdict, reference)
        if verdict.failed:
            break
    if last is not None and not verdict.failed:
        judge(verdict, reference, outcome(folder, last), folder, "after the kill")
        again = bench.run(case, stages[-1], folder)
        judge(verdict, reference, outcome(folder, again), folder, "from the store")
    if not verdict.failed:
        verdict.survived = verdict.injected
        shutil.rmtree(folder, ignore_errors=True)
    return verdict


def _killed(
    bench: Bench,
    case: Case,
    words: tuple[str, ...],
    folder: Path,
    luck: random.Random,
    verdict: Verdict,
    reference: Reference,
) -> None:
    """Start a command and kill it, by the clock or at one of its changes of files."""
    number = luck.choice(SIGNALS)
    if case.forked and luck.random() < 0.5:
        at = luck.randint(1, max(1, reference.changes))
        patch = {"die_at": {"n": at, "signal": int(number), "below": str(folder)}}
        moment = f"{number.name} at change {at}"
        ended = _finish(bench.start(case, words, folder, patch), case, folder, verdict, reference)
    else:
        seconds = luck.uniform(0.02, 1.0) * reference.seconds
        moment = f"{number.name} after {seconds:.2f} s"
        running = bench.start(case, words, folder)
        until = running.began + seconds
        while not running.poll(0.002) and time.monotonic() < until:
            pass
        send(running, number)
        ended = _finish(running, case, folder, verdict, reference)
    verdict.notes.append(moment)
    hit = ended.code < 0 or ended.code in (143, 130)
    verdict.injected += hit
    complaint = unclean(ended)
    expected = -9 if number == signal.SIGKILL else None
    if hit and (ended.code == expected or ended.code in CODES.get(number, ())) and not ended.hung:
        complaint = complaint if complaint and "signal" not in complaint else None
    if complaint:
        verdict.unclean += 1
        verdict.notes.append(f"{moment}: {complaint}")
    elif not hit and ended.code:
        verdict.unclean += 1
        verdict.notes.append(f"{moment}: ended with {ended.code}: {ended.err[-300:]}")


def _finish(running: Running, case: Case, folder: Path, verdict: Verdict, reference: Reference) -> Ended:
    """Await the end, and count stored lines that vanish meanwhile: they will be computed again."""
    before = record_files(folder)
    durable = {file: whole(content, reference.records.get(file, b"")) for file, content in before.items()}
    least = dict(durable)

    def watch() -> None:
        for file, size in sizes(folder).items():
            if file in least:
                least[file] = min(least[file], size)

    ended = finish(running, watch, TIMEOUT if case.forked else 4 * TIMEOUT)
    for file, size in least.items():
        if size < durable[file]:
            gone = before[file][size : durable[file]].count(b"\n")
            verdict.lost += gone
            verdict.notes.append(f"{gone} stored lines of {file} were dropped")
    return ended


def _resumed(
    bench: Bench, case: Case, words: tuple[str, ...], folder: Path, verdict: Verdict, reference: Reference
) -> Ended | None:
    """The command run to its end, waiting for workers of a killed driver that still hold a lock."""
    for _ in range(20):
        ended = _finish(bench.start(case, words, folder), case, folder, verdict, reference)
        if case.forked or ended.code == 0 or "another process" not in ended.err:
            break
        verdict.notes.append("waited for workers of a killed driver")
        time.sleep(1)
    if ended.code:
        verdict.unclean += 1
        verdict.notes.append(f"resumed: ended with {ended.code}: {ended.err[-600:]}")
        return None
    complaint = unclean(ended)
    if complaint:
        verdict.unclean += 1
        verdict.notes.append(f"resumed: {complaint}")
    return ended


def judge(verdict: Verdict, reference: Reference, found: Outcome, folder: Path, when: str) -> None:
    """Compare an outcome with the undisturbed one."""
    if found.numbers != reference.outcome.numbers:
        verdict.wrong += 1
        verdict.notes.append(f"{when}: other numbers: {difference(reference.outcome.numbers, found.numbers)}")
    if found.records != reference.outcome.records:
        verdict.wrong += 1
        files = [
            name
            for name in {*found.records, *reference.outcome.records}
            if found.records.get(name) != reference.outcome.records.get(name)
        ]
        verdict.notes.append(f"{when}: other records in {', '.join(sorted(files))}")
    twice = doubled(record_files(folder))
    if twice:
        verdict.doubled += twice
        verdict.notes.append(f"{when}: {twice} records stand twice")


def difference(before: Any, after: Any, place: str = "") -> str:
    """The first place in which two JSON values differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            if before.get(key) != after.get(key):
                return difference(before.get(key), after.get(key), f"{place}.{key}")
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for at, (one, other) in enumerate(zip(before, after, strict=True)):
            if one != other:
                return difference(one, other, f"{place}[{at}]")
    return f"{place}: {str(before)[:100]} became {str(after)[:100]}"
