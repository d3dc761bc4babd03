"""Locks of the cache folder, and processes that are alive or not."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from vitattack.core.errors import UsageError
from vitattack.core.locks import cache_lock
from vitattack.core.processes import ProcessId


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITATTACK_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize("without_locks", [False, True])
def test_the_cache_has_one_user_at_a_time(home: Path, monkeypatch: pytest.MonkeyPatch, without_locks: bool) -> None:
    def flock(stream: Any, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    if without_locks:
        monkeypatch.setattr(fcntl, "flock", flock)
    inside, most, told = 0, 0, []

    def use() -> None:
        nonlocal inside, most
        with cache_lock("weights/of a model", lambda: told.append(1)):
            inside += 1
            most = max(most, inside)
            time.sleep(0.3)
            inside -= 1

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1 and told == [1]
    assert not list(home.rglob("*.lease"))


def test_a_cache_that_cannot_be_locked_is_one_line(home: Path) -> None:
    home.mkdir()
    (home / "locks").write_text("")
    with pytest.raises(UsageError, match="cannot write the cache .*: set VITATTACK_HOME"), cache_lock("name"):
        pass


def test_processes_are_told_from_those_that_have_their_number() -> None:
    here = ProcessId.of(os.getpid())
    assert not here.ended() and not here.ending() and ProcessId(here.pid, "another start").ended()
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    there = ProcessId.of(process.pid)
    deadline = time.monotonic() + 10
    while not there.ended() and time.monotonic() < deadline:  # a zombie has ended
        time.sleep(0.02)
    assert there.ended()
    process.wait()
    assert there.ended()
