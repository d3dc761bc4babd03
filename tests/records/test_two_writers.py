"""Two processes on one job: file systems without locks or with locks of one machine, killed writers, stolen leases."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from vitattack.core import leases, locks
from vitattack.core.errors import UsageError, VitattackError
from vitattack.core.leases import Holder
from vitattack.core.locks import Locked, lock_file
from vitattack.records.job import Job
from vitattack.records.record import SampleRecord
from vitattack.records.store import Sink

JOB = Job("m", "pgd", "linf:8/255", "d", "w", "p")
BATCHES = [(0, 1), (2, 3)]
HOLD = """
import fcntl, sys, time
from pathlib import Path
if sys.argv[2] == "node-local":
    fcntl.flock = lambda stream, how: None
from vitattack.records.job import Job
from vitattack.records.store import Sink
with Sink(Path(sys.argv[1]), Job("m", "pgd", "linf:8/255", "d", "w", "p"), [(0, 1), (2, 3)]):
    print("open", flush=True)
    time.sleep(60)
"""


def rows(batch: tuple[int, ...]) -> list[SampleRecord]:
    return [SampleRecord(i, 0, 0, 0, "robust", 0.1, False, False, -1, 5, 4, {}) for i in batch]


@pytest.fixture(params=["flock", "none", "node-local"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kinds of locks that file systems have."""
    if request.param == "none":
        monkeypatch.setattr(fcntl, "flock", no_locks)
    if request.param == "node-local":
        monkeypatch.setattr(fcntl, "flock", lambda stream, how: None)
    return str(request.param)


def no_locks(stream: Any, how: int) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


def lease_of(root: Path) -> Path:
    return root / JOB.folder / "samples.jsonl.lease"


@contextmanager
def writer(root: Path, kind: str = "flock") -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the job open."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(root), kind], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "open\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_has_one_writer(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(stream: Any, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with Sink(tmp_path, JOB, BATCHES) as sink:
        sink.write(rows(BATCHES[0]))
        with pytest.raises(UsageError, match=rf"another process is writing .* \(process {os.getpid()} on "):
            Sink(tmp_path, JOB, BATCHES)
        sink.write(rows(BATCHES[1]))
    assert not lease_of(tmp_path).exists()
    with Sink(tmp_path, JOB, BATCHES) as sink:
        assert len(sink.records) == 4


def test_a_second_process_is_refused_and_goes_on_once_the_first_is_killed(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with writer(tmp_path, kind) as other:
        with pytest.raises(Locked, match=rf"process {other.pid} on .*, since .*: wait for it, stop it, or give"):
            Sink(tmp_path, JOB, BATCHES)
        other.kill()
        other.wait()
        monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("the killed process is still waited for"))
        Sink(tmp_path, JOB, BATCHES).__exit__()
    assert not lease_of(tmp_path).exists()


def test_a_process_killed_this_moment_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "SECONDS_FOR_THE_KILLED", 20.0)  # however busy the machine is
    with writer(tmp_path) as other:
        threading.Timer(0.1, other.send_signal, (signal.SIGKILL,)).start()
        Sink(tmp_path, JOB, BATCHES).__exit__()


def test_a_stopped_process_keeps_its_file(tmp_path: Path, kind: str) -> None:
    with writer(tmp_path, kind) as other:
        other.send_signal(signal.SIGSTOP)
        with pytest.raises(Locked):
            Sink(tmp_path, JOB, BATCHES)


def elsewhere(path: Path, **changes: Any) -> Holder:
    """A lease as another machine would write it."""
    holder = Holder(**{**Holder.this(flock=True).__dict__, "host": "node7", "machine": "another", **changes})
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(asdict(holder)) + "\n" + "0" * 12 + "\n")
    return holder


@pytest.mark.parametrize("jump", [0, 10**8, -(10**8)])
def test_another_machine_is_alive_as_long_as_its_lease_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    monkeypatch.setattr(leases, "SILENT_AFTER", 1.0)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + jump)  # no clock of one machine is compared with another's
    elsewhere(lease_of(tmp_path))
    beat = threading.Timer(0.15, lease_of(tmp_path).write_text, (lease_of(tmp_path).read_text() + "1",))
    beat.start()
    with pytest.raises(Locked, match="process .* on node7"):
        Sink(tmp_path, JOB, BATCHES)
    beat.join()
    began = time.monotonic()
    with Sink(tmp_path, JOB, BATCHES):  # nothing has changed since
        assert 1 <= time.monotonic() - began < 2.6


@pytest.mark.parametrize("content", ["", "{", "[]\n", '{"token": 1}\n', "\x00" * 300])
def test_a_damaged_lease_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    monkeypatch.setattr(leases, "SILENT_AFTER", 0.1)
    monkeypatch.setattr(leases, "SILENT_UNWRITTEN", 0.1)
    lease_of(tmp_path).parent.mkdir()
    lease_of(tmp_path).write_text(content)
    with Sink(tmp_path, JOB, BATCHES) as sink:
        sink.write(rows(BATCHES[0]))
    assert not lease_of(tmp_path).exists()


def test_a_container_that_was_killed_on_this_machine_is_not_waited_for(tmp_path: Path) -> None:
    elsewhere(lease_of(tmp_path), machine=Holder.this(flock=True).machine, space="pid:[1]")
    Sink(tmp_path, JOB, BATCHES).__exit__()


def test_a_process_number_used_again_is_not_the_holder(tmp_path: Path) -> None:
    here = Holder.this(flock=False)
    init = {"process": leases.ProcessId(os.getppid(), "1"), "machine": here.machine}
    elsewhere(lease_of(tmp_path), **init)
    Sink(tmp_path, JOB, BATCHES).__exit__()


def test_whoever_lost_its_lease_writes_nothing_more(tmp_path: Path, kind: str) -> None:
    with Sink(tmp_path, JOB, BATCHES) as sink:
        sink.write(rows(BATCHES[0]))
        before = sink.path.read_bytes()
        thief = elsewhere(lease_of(tmp_path))
        with pytest.raises(
            VitattackError, match=r"samples.jsonl was taken over by process \d+ on node7, since .*again"
        ):
            sink.write(rows(BATCHES[1]))
        assert sink.path.read_bytes() == before
    assert json.loads(lease_of(tmp_path).read_text().splitlines()[0])["token"] == thief.token


def test_a_lease_that_was_tidied_up_is_made_again(tmp_path: Path) -> None:
    with Sink(tmp_path, JOB, BATCHES) as sink:
        lease_of(tmp_path).unlink()
        sink.write(rows(BATCHES[0]))
        assert lease_of(tmp_path).exists()
    assert not lease_of(tmp_path).exists()


def test_a_lease_beats_and_stays_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "SECONDS_BETWEEN_BEATS", 0.01)
    with Sink(tmp_path, JOB, BATCHES):
        first = leases.Sight.of(lease_of(tmp_path))
        time.sleep(0.3)
        second = leases.Sight.of(lease_of(tmp_path))
    assert first is not None and second is not None
    assert second != first and second.same_holder(first) and second.holder == first.holder is not None


def test_one_of_many_takes_a_dead_lease_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", no_locks)
    monkeypatch.setattr(locks, "SECONDS_FOR_THE_KILLED", 0.0)
    path = tmp_path / "records"
    for _ in range(10):
        elsewhere(tmp_path / "records.lease", process=leases.ProcessId(2**22 + 1), machine=leases.machine())
        start, taken = threading.Barrier(6), []

        def claim(start: threading.Barrier = start, taken: list[locks.FileLock] = taken) -> None:
            with path.open("ab") as stream:
                start.wait()
                with suppress(Locked):
                    taken.append(lock_file(stream, path))

        threads = [threading.Thread(target=claim) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(taken) == 1
        taken[0].confirm()
        taken[0].release()
        assert [each.name for each in tmp_path.iterdir()] == ["records"]


def test_a_dead_lease_is_taken_over_by_one_however_long_another_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two more come while the first is between its look at the dead lease and the lease's removal, and after it."""
    monkeypatch.setattr(fcntl, "flock", no_locks)
    monkeypatch.setattr(locks, "SECONDS_FOR_THE_KILLED", 0.0)
    path, taken, move = tmp_path / "records", [], Path.rename
    elsewhere(tmp_path / "records.lease", process=leases.ProcessId(2**22 + 1), machine=leases.machine())

    def claim() -> None:
        with path.open("ab") as stream, suppress(Locked):
            taken.append(lock_file(stream, path))

    def slow_move(self: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "rename", move)
        claim()
        moved = self.rename(target)
        claim()
        return moved

    monkeypatch.setattr(Path, "rename", slow_move)
    claim()
    assert len(taken) == 1
    taken[0].confirm()
    taken[0].release()
    assert [each.name for each in tmp_path.iterdir()] == ["records"]


@pytest.mark.parametrize("depth", [1, 2])
def test_whoever_died_while_it_took_a_lease_over_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    monkeypatch.setattr(leases, "SILENT_AFTER", 0.2)
    near = {"process": leases.ProcessId(2**22 + 1), "machine": leases.machine()}
    lease_of(tmp_path).parent.mkdir()
    elsewhere(lease_of(tmp_path), **near)
    for level in range(1, depth + 1):  # the last died on another machine: only its silence shows it
        guard = lease_of(tmp_path).with_name("samples.jsonl" + ".lease" * (level + 1))
        elsewhere(guard, **(near if level < depth else {}))
    with Sink(tmp_path, JOB, BATCHES) as sink:
        sink.write(rows(BATCHES[0]))
    assert [each.name for each in lease_of(tmp_path).parent.iterdir() if "lease" in each.name] == []


def test_shards_leave_no_lease_behind_and_merge(tmp_path: Path, kind: str) -> None:
    for number in (1, 0):
        with Sink(tmp_path, JOB, BATCHES, (number, 2)) as sink:
            assert f"samples.shard-{number}-of-2.jsonl.lease" in {path.name for path in sink.folder.iterdir()}
            sink.write(rows(sink.todo[0]))
            assert sink.merge() is (number == 0)
    names = {path.name for path in (tmp_path / JOB.folder).iterdir()}
    assert not [name for name in names if "lease" in name] and "samples.jsonl" in names


def test_who_finishes_the_shards_is_decided_by_the_lease_too(tmp_path: Path, kind: str) -> None:
    with Sink(tmp_path, JOB, BATCHES, (1, 2)) as sink:
        sink.write(rows(sink.todo[0]))
    with Sink(tmp_path, JOB, BATCHES, (0, 2)) as one, Sink(tmp_path, JOB, BATCHES, (1, 2)) as two:
        one.write(rows(one.todo[0]))
        assert one.merge() and not two.merge()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_lease_that_cannot_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(stream: Any, content: bytes) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(leases, "_write", refuse)
    with pytest.raises(VitattackError, match=r"cannot write .*samples.jsonl \(.*\): (free some space|give another)"):
        Sink(tmp_path, JOB, BATCHES)
    assert not lease_of(tmp_path).exists()


def test_a_folder_that_vanished_is_one_line(tmp_path: Path) -> None:
    with Sink(tmp_path, JOB, BATCHES) as sink:
        for path in sink.folder.iterdir():
            path.unlink()
        sink.folder.rmdir()
        with pytest.raises(VitattackError, match=r"cannot write .*samples.jsonl.* \(No such file or directory\)"):
            sink.write(rows(BATCHES[0]))


def test_a_fork_releases_nothing(tmp_path: Path) -> None:
    fork = """
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    print(*os.listdir(next(Path(sys.argv[1]).iterdir())))
"""
    code = "import os\n" + HOLD.partition("    print")[0] + fork
    command = [sys.executable, "-c", code, str(tmp_path), "flock"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(lines) == 2 and all("samples.jsonl.lease" in line for line in lines)
    assert not lease_of(tmp_path).exists()
