"""`eval --jobs`: kills and interrupts of a command whose work is shared, and the records after it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.long_run import RUN, records_of
from vitattack.core.processes import ProcessId

ENTRY = [sys.executable, "-m", "vitattack.cli"]


def workers_of(process: subprocess.Popen[str]) -> list[ProcessId]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [ProcessId.of(int(child)) for child in children]


def started(root: Path) -> subprocess.Popen[str]:
    """The run shared by two workers, once some batches are on the disk."""

    def as_in_a_terminal() -> None:
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    process = subprocess.Popen(
        [*ENTRY, *RUN, "--jobs", "2"], cwd=root, stderr=subprocess.PIPE, text=True, preexec_fn=as_in_a_terminal
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        files = [*root.glob("runs/*/samples.jsonl")]
        if files and files[0].stat().st_size and len(workers_of(process)) == 2:
            return process
        assert process.poll() is None
        time.sleep(0.005)
    raise AssertionError("no batch was written in two minutes")


@pytest.mark.slow
def test_stops_of_all_kinds_change_no_byte(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    subprocess.run([*ENTRY, *RUN, "--jobs", "1"], cwd=tmp_path / "whole", check=True, stdout=subprocess.DEVNULL)
    for number, code in ((signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, 143)):
        root = tmp_path / str(code)
        root.mkdir()
        process = started(root)
        workers = workers_of(process)
        os.killpg(process.pid, number)  # as Ctrl-C in a terminal does
        said = process.communicate()[1].split("\n")
        assert process.returncode == code and len([line for line in said if line]) == (code > 0)
        began = time.monotonic()
        while not all(worker.ended() for worker in workers):
            assert time.monotonic() - began < 1
        subprocess.run([*ENTRY, *RUN, "--jobs", "2"], cwd=root, check=True, stdout=subprocess.DEVNULL)
        assert records_of(root) == records_of(tmp_path / "whole")


@pytest.mark.slow
def test_a_killed_worker_is_replaced(tmp_path: Path) -> None:
    process = started(tmp_path)
    os.kill(workers_of(process)[0].pid, signal.SIGKILL)
    assert process.communicate()[1] == "" and process.returncode == 0
    (tmp_path / "whole").mkdir()
    subprocess.run([*ENTRY, *RUN, "--jobs", "1"], cwd=tmp_path / "whole", check=True, stdout=subprocess.DEVNULL)
    assert records_of(tmp_path) == records_of(tmp_path / "whole")
