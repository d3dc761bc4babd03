"""Start, watch, kill and await commands, in forks of a zygote or in processes of their own."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 150.0  # seconds after which a command counts as hung; an unknown lease is watched for 60


def clean_environment(home: Path) -> dict[str, str]:
    """The variables of a command under test."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("VITATTACK_", "HF_", "RAY_"))}
    return {**kept, "VITATTACK_HOME": str(home), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}


@dataclass(frozen=True)
class Ended:
    """A command that has ended; `hung` if it had to be stopped for taking too long."""

    code: int
    out: str
    err: str
    seconds: float
    hung: bool = False


class Running(Protocol):
    """A command that was started, the leader of a process group."""

    pid: int
    began: float

    def poll(self, seconds: float) -> bool:
        """Whether it ended within this time."""
        ...

    def ended(self) -> Ended: ...


class Launcher(Protocol):
    def start(
        self, words: Sequence[str], folder: Path, home: Path, patches: Mapping[str, Any] | None = None
    ) -> Running: ...


def send(running: Running, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(running.pid, number)


def finish(running: Running, watch: Callable[[], None] = lambda: None, timeout: float = TIMEOUT) -> Ended:
    """Wait for the end of a command, calling `watch` all the while."""
    while not running.poll(0.005):
        watch()
        if time.monotonic() - running.began > timeout:
            send(running, signal.SIGKILL)
            while not running.poll(1):
                pass
            return Ended(**{**running.ended().__dict__, "hung": True})
    watch()
    return running.ended()


@dataclass
class _Outputs:
    """Files that both outputs of a command go to."""

    folder: Path
    number: int = 0

    def next(self) -> tuple[Path, Path]:
        self.number += 1
        return self.folder / f".{self.number}.out", self.folder / f".{self.number}.err"


@dataclass
class _Child:
    pid: int
    began: float
    files: tuple[Path, Path]
    wait: Callable[[int, float], int | None]
    code: int | None = None
    took: float = 0.0

    def poll(self, seconds: float) -> bool:
        if self.code is None:
            self.code = self.wait(self.pid, seconds)
            self.took = time.monotonic() - self.began
        return self.code is not None

    def ended(self) -> Ended:
        assert self.code is not None
        out, err = (path.read_text(errors="replace") for path in self.files)
        for path in self.files:
            path.unlink()
        return Ended(self.code, out, err, self.took)


class Zygote:
    """Forks commands from a process in which everything heavy is imported: a run costs what it computes."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self._outputs = _Outputs(folder)
        self._codes: dict[int, int] = {}
        self._started: list[int] = []
        self._rest = b""
        home = folder / ".zygote-home"
        home.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(
            [python, "-m", "tests.faults.zygote"],
            cwd=ROOT,
            env=clean_environment(home),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._ready = False

    def _read(self, seconds: float) -> None:
        assert self._process.stdout is not None
        handle = self._process.stdout.fileno()
        if not select.select([handle], [], [], max(0.0, seconds))[0]:
            return
        piece = os.read(handle, 1 << 16)
        if not piece:
            raise RuntimeError("the zygote has died")
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            content = json.loads(line)
            if "ended" in content:
                self._codes[content["ended"]] = content["code"]
            elif "started" in content:
                self._started.append(content["started"])
            else:
                self._ready = True

    def _wait(self, pid: int, seconds: float) -> int | None:
        if pid not in self._codes:
            self._read(seconds)
        return self._codes.pop(pid, None)

    def start(
        self, words: Sequence[str], folder: Path, home: Path, patches: Mapping[str, Any] | None = None
    ) -> Running:
        while not self._ready:
            self._read(10)
        out, err = self._outputs.next()
        env = {"VITATTACK_HOME": str(home)}
        request = {"words": list(words), "folder": str(folder), "env": env, "out": str(out), "err": str(err)}
        assert self._process.stdin is not None
        os.write(self._process.stdin.fileno(), json.dumps({**request, "patches": dict(patches or {})}).encode() + b"\n")
        while not self._started:
            self._read(10)
        pid = self._started.pop(0)
        with suppress(OSError):
            os.setpgid(pid, pid)  # the child does so too: whoever comes first
        return _Child(pid, time.monotonic(), (out, err), self._wait)

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@dataclass
class Processes:
    """Starts every command as a user does, in an interpreter of its own."""

    folder: Path
    python: str = sys.executable
    _outputs: _Outputs = field(init=False)

    def __post_init__(self) -> None:
        self._outputs = _Outputs(self.folder, 1_000_000)

    def start(
        self, words: Sequence[str], folder: Path, home: Path, patches: Mapping[str, Any] | None = None
    ) -> Running:
        assert not patches, "only a fork can be patched"
        out, err = self._outputs.next()
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                [self.python, "-m", "vitattack.cli", *words],
                cwd=folder,
                env={**clean_environment(home), "RAY_AUTH_MODE": "disabled"},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )

        def wait(pid: int, seconds: float) -> int | None:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(seconds)
            return None

        return _Child(process.pid, time.monotonic(), (out, err), wait)

    def close(self) -> None:
        pass
