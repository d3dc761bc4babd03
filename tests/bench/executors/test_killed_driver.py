"""Workers end with the process that started them, so that whoever resumes finds the locks free."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vitattack.core.leases import Sight
from vitattack.core.locks import lock_file
from vitattack.core.processes import ProcessId
from vitattack.core.progress import Listener, listening

BUSY = """
import multiprocessing, sys, time
from pathlib import Path
from vitattack.core.locks import lock_file
from vitattack.core import processes

def work(path, ends):
    if ends:
        processes.end_with_parent()
    with open(path, "ab") as stream:
        lock = lock_file(stream, Path(path))
        sys.stdout.write("busy\\n"); sys.stdout.flush()
        sum(range(10**11))  # never lets another thread of Python run

if __name__ == "__main__":
    path, start, ends = sys.argv[1:]
    worker = multiprocessing.get_context(start).Process(target=work, args=(path, ends == "ends"))
    worker.start()
    worker.join()
"""
FILE = """\
schema: 1
title: Long cells
source: us
data: cifar10-demo[:64]
threats: [linf:8/255]
models: [tiny-vit]
attacks: ["pgd(steps=2000, stop=never)", "gama(steps=2000, stop=never)"]
defaults: {batch_size: 32}
"""


def worker_of(path: Path) -> ProcessId:
    """The process that holds a file, as soon as there is one."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        sight = Sight.of(path)
        if sight is not None and sight.holder is not None:
            return sight.holder.process
        time.sleep(0.02)
    raise AssertionError("nobody took the lock")


def seconds_until_the_end(process: ProcessId) -> float:
    began = time.monotonic()
    while not process.ended():
        assert time.monotonic() - began < 20, "the worker lives on"
        time.sleep(0.01)
    return time.monotonic() - began


@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_a_busy_worker_ends_with_its_driver(tmp_path: Path, start: str) -> None:
    (tmp_path / "busy.py").write_text(BUSY)
    path = tmp_path / "records"
    driver = subprocess.Popen([sys.executable, tmp_path / "busy.py", path, start, "ends"], stdout=subprocess.PIPE)
    worker = worker_of(tmp_path / "records.lease")
    assert worker.pid != driver.pid
    driver.kill()
    driver.communicate()
    assert seconds_until_the_end(worker) < 1
    with path.open("ab") as stream:
        lock_file(stream, path).release()


def test_a_worker_that_lives_on_is_waited_for_with_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a system whose kernel does not end it at once."""
    said: list[str] = []

    class Notes(Listener):
        def note(self, line: str) -> None:
            said.append(line)

    lives_on = "processes._Driver.found = processes.ProcessId.of(processes.os.getppid())"
    code = BUSY.replace("processes.end_with_parent()", lives_on)
    (tmp_path / "busy.py").write_text(code)
    path = tmp_path / "records"
    driver = subprocess.Popen([sys.executable, tmp_path / "busy.py", path, "fork", "ends"], stdout=subprocess.PIPE)
    worker = worker_of(tmp_path / "records.lease")
    driver.kill()
    driver.wait()
    command = ["sh", "-c", f"sleep 1.2; kill -9 {worker.pid}"]
    with listening(Notes()), path.open("ab") as stream, subprocess.Popen(command):
        lock_file(stream, path).release()
    driver.communicate()
    assert len(said) == 1 and "held by a worker of a run that was killed (process" in said[0]


@pytest.mark.slow
def test_a_killed_bench_frees_its_runs_at_once(tmp_path: Path) -> None:
    (tmp_path / "long.yaml").write_text(FILE)
    command = [sys.executable, "-m", "vitattack.cli", "bench", str(tmp_path / "long.yaml"), "--jobs", "2"]
    command += ["--out", str(tmp_path / "runs"), "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def started(count: int) -> tuple[subprocess.Popen[bytes], list[Path]]:
        with (tmp_path / "stderr").open("w") as stream:
            driver = subprocess.Popen(command, env=environment, stderr=stream)
        deadline = time.monotonic() + 200
        while len(found := sorted((tmp_path / "runs").glob("*/samples.jsonl.lease"))) < count:
            assert driver.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        return driver, found

    driver, found = started(2)
    workers = [worker_of(path) for path in found]
    assert driver.pid not in {worker.pid for worker in workers}
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert max(map(seconds_until_the_end, workers)) < 1
    again, found = started(2)
    try:
        deadline = time.monotonic() + 200
        while {worker_of(path).pid for path in found} & {worker.pid for worker in workers}:
            assert again.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        again.terminate()
        again.wait()
    said = (tmp_path / "stderr").read_text()
    assert "another process" not in said and "waiting" not in said, said
