"""Full, read-only and vanishing folders; two processes on one run; clocks that jump; data files that change."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .damages import flip_bit, insert, other_digit, other_word, overwrite, truncate, zero_page
from .kills import Bench, Reference, judge
from .launcher import Ended, Running, finish, send
from .outcome import Outcome, numbers, other_cells, outcome, reason, refused, unclean
from .tally import Verdict
from .workshop import CASES, Case

Trial = Callable[[Bench, Case, str, random.Random], Verdict]


class Skipped(Exception):
    """This machine cannot bring about the fault."""


@contextmanager
def mounted(place: Path, *options: str) -> Iterator[None]:
    """Something mounted over a folder; skips where this process may not mount."""
    done = subprocess.run(["mount", *options, str(place)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Skipped(f"cannot mount: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def _acceptable(verdict: Verdict, reference: Reference, folder: Path, ended: Ended, when: str) -> None:
    """Either the numbers of the undisturbed run, or one line."""
    complaint = unclean(ended)
    if complaint or (ended.code and not refused(ended)):
        verdict.unclean += 1
        verdict.notes.append(f"{when}: {complaint or f'ended with {ended.code}: {ended.err[-300:]}'}")
    elif ended.code:
        verdict.notes.append(f"{when}: {reason(ended)}")
        for name in other_cells(ended, reference.outcome.numbers):
            verdict.wrong += 1
            verdict.notes.append(f"{when}: other numbers of {name}")
    elif (found := numbers(ended.out)) != reference.outcome.numbers and not _waits(found):
        judge(verdict, reference, outcome(folder, ended), folder, when)


def _waits(found: object) -> bool:
    """Whether this is the answer of a shard that waits for others."""
    return isinstance(found, dict) and found.get("finished") is False


def _ends_well(bench: Bench, case: Case, folder: Path, verdict: Verdict, reference: Reference) -> None:
    """Without the fault the same command ends with the numbers and records of an undisturbed run."""
    ended = bench.finish_all(case, folder)
    if ended.code or unclean(ended):
        verdict.unclean += 1
        verdict.notes.append(f"afterwards: ended with {ended.code}: {ended.err[-300:]}")
        return
    judge(verdict, reference, outcome(folder, ended), folder, "afterwards")
    if not verdict.failed:
        verdict.survived = verdict.injected
        shutil.rmtree(folder, ignore_errors=True)


def _at_some_point(bench: Bench, running: Running, seconds: float) -> bool:
    """Wait until a moment of a run; False if it ended before."""
    until = running.began + seconds
    while time.monotonic() < until:
        if running.poll(0.005):
            return False
    return True


def full_disk(bench: Bench, case: Case, name: str, luck: random.Random) -> Verdict:
    """A disk too small for the run, then one with room."""
    reference, verdict, folder = bench.reference(case), Verdict(injected=1), bench.workshop.place(name, case)
    runs = folder / "runs"
    runs.mkdir()
    needed = sum(-(-path.stat().st_size // 4096) + 1 for path in (reference.folder / "runs").rglob("*"))
    size = 4096 * luck.randint(3, max(4, needed))
    with mounted(runs, "-t", "tmpfs", "-o", f"size={size}", "none"):
        ended = bench.finish_all(case, folder)
        _acceptable(verdict, reference, folder, ended, f"disk of {size} bytes")
        verdict.refused += bool(ended.code)
        subprocess.run(["mount", "-o", "remount,size=64m", str(runs)], check=True)
        if not verdict.failed:
            again = bench.finish_all(case, folder)
            _judge_end(verdict, reference, folder, again, "with room again")
    return _closed(verdict, folder)


def _judge_end(verdict: Verdict, reference: Reference, folder: Path, ended: Ended, when: str) -> None:
    """Compare a run that has to end well with the reference."""
    if ended.code:
        verdict.unclean += 1
        verdict.notes.append(f"{when}: ended with {ended.code}: {ended.err[-300:]}")
    else:
        judge(verdict, reference, outcome(folder, ended), folder, when)


def file_too_large(bench: Bench, case: Case, name: str, luck: random.Random) -> Verdict:
    """No file may grow beyond some bytes, as under a quota."""
    reference, verdict, folder = bench.reference(case), Verdict(injected=1), bench.workshop.place(name, case)
    limit = luck.randint(500, 8000)
    ended = bench.finish_all(case, folder, {"largest_file": limit})
    _acceptable(verdict, reference, folder, ended, f"files of at most {limit} bytes")
    verdict.refused += bool(ended.code)
    if not verdict.failed:
        _ends_well(bench, case, folder, verdict, reference)
    return verdict


def read_only(bench: Bench, case: Case, name: str, luck: random.Random) -> Verdict:
    """A store that becomes read-only during the run, or was from the start."""
    reference, verdict, folder = bench.reference(case), Verdict(injected=1), bench.workshop.place(name, case)
    runs = folder / "runs"
    runs.mkdir()
    with mounted(runs, "-t", "tmpfs", "none"):
        running = bench.start(case, case.commands[0], folder)
        if luck.random() < 0.7:
            _at_some_point(bench, running, luck.uniform(0, reference.seconds))
        # busy while a file is open for writing: the kernel refuses what the fault wants, so try until the end
        while subprocess.run(["mount", "-o", "remount,ro", str(runs)], capture_output=True, check=False).returncode:
            if running.poll(0.01):
                break
        ended = finish(running)
        _acceptable(verdict, reference, folder, ended, "read-only")
        verdict.refused += bool(ended.code)
        still = bench.run(case, case.commands[0], folder)
        _acceptable(verdict, reference, folder, still, "read-only from the start")
        subprocess.run(["mount", "-o", "remount,rw", str(runs)], check=True)
        if not verdict.failed:
            again = bench.finish_all(case, folder)
            _acceptable(verdict, reference, folder, again, "writable again")
            if again.code:
                verdict.unclean += 1
    return _closed(verdict, folder)


def _closed(verdict: Verdict, folder: Path) -> Verdict:
    if not verdict.failed:
        verdict.survived = verdict.injected
        shutil.rmtree(folder, ignore_errors=True)
    return verdict


def vanishing(bench: Bench, case: Case, name: str, luck: random.Random) -> Verdict:
    """The store, or one run in it, is deleted during the run."""
    reference, verdict, folder = bench.reference(case), Verdict(), bench.workshop.place(name, case)
    running = bench.start(case, case.commands[0], folder)
    if _at_some_point(bench, running, luck.uniform(0.1, 1.0) * reference.seconds):
        runs = folder / "runs"
        inside = sorted(path for path in runs.glob("*") if path.is_dir())
        gone = luck.choice([runs, *inside]) if runs.exists() else runs
        verdict.injected = int(gone.exists())
        aside = folder / "gone"
        with suppress(OSError):
            gone.rename(aside)  # all at once, as an unmounted share
        shutil.rmtree(aside, ignore_errors=True)
        verdict.notes.append(f"{gone.relative_to(folder)} vanished")
    ended = finish(running)
    _acceptable(verdict, reference, folder, ended, "vanished")
    verdict.refused += bool(ended.code)
    if not verdict.failed:
        _ends_well(bench, case, folder, verdict, reference)
    return verdict


def _two(bench: Bench, case: Case, name: str, luck: random.Random, *patches: dict[str, object]) -> Verdict:
    """Two processes on one run, the second at a random moment; sometimes the first is killed."""
    reference, verdict, folder = bench.reference(case), Verdict(injected=1), bench.workshop.place(name, case)
    words = case.commands[0]
    first = bench.start(case, words, folder, patches[0])
    _at_some_point(bench, first, luck.uniform(0, 0.9) * reference.seconds)
    second = bench.start(case, words, folder, patches[1])
    if luck.random() < 0.3:
        _at_some_point(bench, second, luck.uniform(0, 0.6) * reference.seconds)
        send(first, signal.SIGKILL)
    ended = []
    for number, running in enumerate((first, second), 1):
        done = finish(running)
        ended.append(done.code)
        if done.code != -signal.SIGKILL:
            _acceptable(verdict, reference, folder, done, f"process {number} of 2")
    verdict.refused += any(code in (1, 2) for code in ended)
    if not verdict.failed:
        deadline = time.monotonic() + 90  # a lease of a killed process runs out some time
        while True:
            last = bench.run(case, words, folder, patches[1])
            if not (last.code == 2 and ("another" in last.err or "lease" in last.err)) or time.monotonic() > deadline:
                break
            time.sleep(2)
        _judge_end(verdict, reference, folder, last, "afterwards")
    return _closed(verdict, folder)


def two_with_locks(bench: Bench, case: Case, name: str, luck: random.Random) -> Verdict:
    """Two processes on one run, on a file system with locks."""
    return _two(bench, case, name, luck, {}, {})


def two_without_locks(bench: Bench, case: Case, name: str, luck: random.Random) -> Verdict:
    """Two processes on one run, on a file system that answers ENOLCK."""
    return _two(bench, case, name, luck, {"absent_locks": 1}, {"absent_locks": 1})


def two_nodes(bench: Bench, case: Case, name: str, luck: random.Random) -> Verdict:
    """Two nodes on one run, on a file system whose locks are local to a node."""
    nodes = [{"local_locks": 1, "node": name} for name in ("node-a", "node-b")]
    return _two(bench, case, name, luck, *nodes)


def shards_at_once(bench: Bench, case: Case, name: str, luck: random.Random) -> Verdict:
    """All shards of a run at the same time, one of them killed: whoever comes last merges."""
    reference, verdict, folder = bench.reference(case), Verdict(injected=1), bench.workshop.place(name, case)
    shards = [bench.start(case, words, folder) for words in case.commands]
    if luck.random() < 0.7:
        victim = luck.choice(shards)
        if _at_some_point(bench, victim, luck.uniform(0, 1.2) * reference.seconds):
            send(victim, signal.SIGKILL)
    for number, running in enumerate(shards):
        ended = finish(running)
        if ended.code != -signal.SIGKILL:
            _acceptable(verdict, reference, folder, ended, f"shard {number}")
    if not verdict.failed:
        _ends_well(bench, case, folder, verdict, reference)
    return verdict


def overwritten(bench: Bench, case: Case, name: str, luck: random.Random) -> Verdict:
    """A file of the run is damaged under the hands of the process that writes it."""
    reference, verdict, folder = bench.reference(case), Verdict(), bench.workshop.place(name, case)
    running = bench.start(case, case.commands[0], folder)
    if _at_some_point(bench, running, luck.uniform(0.2, 1.0) * reference.seconds):
        files = [path for path in sorted((folder / "runs").rglob("*")) if path.is_file()]
        with suppress(OSError):  # it may have gone meanwhile
            path = luck.choice([path for path in files if path.name.startswith("samples")] * 2 + files + [folder])
            change = luck.choice([flip_bit, overwrite, other_digit, other_word, truncate, insert, zero_page])
            content = path.read_bytes()
            damaged = change(content, luck) if content else content
            path.write_bytes(damaged)  # in place: the process goes on with the same file
            verdict.injected = int(damaged != content)
            verdict.notes.append(f"{change.__name__} in {path.relative_to(folder)} during the run")
    ended = finish(running)
    _acceptable(verdict, reference, folder, ended, "during the run")
    verdict.refused += bool(ended.code)
    if not verdict.failed:
        for _ in range(2):  # a refusal may ask for --fresh
            ended = bench.run(case, case.commands[0], folder)
            _acceptable(verdict, reference, folder, ended, "afterwards")
    return _closed(verdict, folder)


def jumping_clock(bench: Bench, case: Case, name: str, luck: random.Random) -> Verdict:
    """The wall clock jumps back and forth by up to three years, in a run that is killed and resumed."""
    reference, verdict, folder = bench.reference(case), Verdict(injected=1), bench.workshop.place(name, case)
    patch = {"clock": luck.randrange(1 << 30)}
    running = bench.start(case, case.commands[0], folder, patch)
    if luck.random() < 0.5 and _at_some_point(bench, running, luck.uniform(0, 1) * reference.seconds):
        send(running, signal.SIGKILL)
    ended = finish(running)
    if ended.code != -signal.SIGKILL:
        _acceptable(verdict, reference, folder, ended, "jumping clock")
    if not verdict.failed:
        again = bench.finish_all(case, folder, {"clock": luck.randrange(1 << 30)})
        _judge_end(verdict, reference, folder, again, "resumed")
    return _closed(verdict, folder)


def changed_data(bench: Bench, case: Case, name: str, luck: random.Random) -> Verdict:
    """The file with the images is changed or cut during the run, then put back."""
    reference, verdict, folder = bench.reference(case), Verdict(), bench.workshop.place(name, case)
    images = bench.workshop.root / "images.npz"
    # a copy of its own, so that trials side by side read the true one; a relative path keeps texts equal
    own = folder / "work"
    own.mkdir()
    for path in bench.workshop.root.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy2(path, folder / path.name)
    place = own.rename(folder / "trial")
    shutil.copytree(folder / "home", place / "home")
    content = images.read_bytes()
    running = bench.start(case, case.commands[0], place)
    if _at_some_point(bench, running, luck.uniform(0.2, 1.0) * reference.seconds):
        verdict.injected = 1
        target = folder / "images.npz"
        at = luck.randrange(200, len(content) - 500)
        change = luck.choice(["pixel", "cut", "replaced", "deleted"])
        if change == "pixel":
            with target.open("r+b") as stream:
                stream.seek(at)
                stream.write(bytes([content[at] ^ 0x80]))
        elif change == "cut":
            with target.open("r+b") as stream:
                stream.truncate(at)
        elif change == "replaced":
            other = folder / "other.npz"
            other.write_bytes((bench.workshop.root / "calibration.npz").read_bytes())
            other.replace(target)
        else:
            target.unlink()
        verdict.notes.append(f"images {change}")
    ended = finish(running)
    if ended.code == -signal.SIGBUS:
        verdict.unclean += 1
        verdict.notes.append("a bus error")
    elif not _is_of_changed_data(bench, case, folder, ended, reference):
        _acceptable(verdict, reference, place, ended, "data changed")
    verdict.refused += bool(ended.code)
    (folder / "images.npz").unlink(missing_ok=True)
    shutil.copy2(images, folder / "images.npz")
    if not verdict.failed:
        again = bench.finish_all(case, place)
        if again.code:
            verdict.unclean += 1
            verdict.notes.append(f"put back: ended with {again.code}: {again.err[-300:]}")
        else:
            done = outcome(place, again)  # records of the changed file have keys of their own
            expected = {name: content for name, content in done.records.items() if name in reference.records}
            judge(verdict, reference, Outcome(done.numbers, expected), place, "put back")
    return _closed(verdict, folder)


def _is_of_changed_data(bench: Bench, case: Case, folder: Path, ended: Ended, reference: Reference) -> bool:
    """Whether a run began after the change: it says whose data it used, and an undisturbed run says the same."""
    found = numbers(ended.out)
    if found is None or found["provenance"]["data_sha256"] == reference.outcome.numbers["provenance"]["data_sha256"]:
        return False
    other = folder / "undisturbed"
    shutil.copytree(folder / "home", other / "home")
    undisturbed = bench.finish_all(case, other)
    return not undisturbed.code and numbers(undisturbed.out) == found


STORES = ("eval", "auto", "aas", "transfer", "bench", "train")
TRIALS: dict[str, tuple[Trial, tuple[str, ...]]] = {
    "full disk": (full_disk, STORES),
    "file too large": (file_too_large, STORES),
    "read-only": (read_only, STORES),
    "vanishing": (vanishing, STORES),
    "two, locks": (two_with_locks, STORES),
    "two, no locks": (two_without_locks, STORES),
    "two nodes": (two_nodes, STORES),
    "shards at once": (shards_at_once, ("shards",)),
    "overwritten": (overwritten, STORES),
    "clock": (jumping_clock, STORES),
    "data": (changed_data, ("eval", "auto", "aas")),
}
assert all(name in CASES for _, names in TRIALS.values() for name in names)
