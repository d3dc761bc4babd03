"""Work spread over copies of this process: what it returns, raises, notes and warns, and how copies end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from vitattack.core.errors import UsageError, VitattackError
from vitattack.core.forked import MAX_ATTEMPTS, spread
from vitattack.core.processes import ProcessId
from vitattack.core.progress import Listener, current_listener, in_stage, listening


def found(work: Callable[[Any], Any], items: list[Any], count: int = 2, threads: int = 1) -> dict[Any, Any]:
    return dict(spread(work, items, count, threads))


def children() -> set[int]:
    return {int(n) for n in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


@pytest.fixture
def before() -> set[int]:
    """The children of other tests."""
    return children()


class Heard(Listener):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.warned: list[str] = []
        self.stages: list[tuple[str, int, int]] = []

    def note(self, line: str) -> None:
        self.notes.append(line)

    def warn(self, line: str) -> None:
        self.warned.append(line)

    def stage(self, what: str, done: int, total: int) -> None:
        self.stages.append((what, done, total))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_item_is_worked_on_once(count: int, before: set[int]) -> None:
    parent = os.getpid()
    answers = found(lambda n: (n * n, os.getpid() == parent), [*range(7)], count)
    assert answers == {n: (n * n, count == 1) for n in range(7)}
    assert not children() - before


def test_processes_work_side_by_side_and_keep_what_they_inherit() -> None:
    seen = torch.arange(3.0)
    pids = found(lambda n: (os.getpid(), float(seen.sum()), time.sleep(0.3)), [0, 1, 2, 3])
    assert len({pid for pid, _, _ in pids.values()}) == 2 and all(total == 3 for _, total, _ in pids.values())


@pytest.mark.parametrize("threads", [1, 2])
def test_copies_of_a_process_with_a_used_thread_pool_compute_its_bits(threads: int) -> None:
    """A copied OpenMP pool has no threads: a copy that used it would hang."""
    x = torch.randn(256, 384, generator=torch.Generator().manual_seed(0))

    def product(scale: int) -> torch.Tensor:
        leaf = (x * scale).requires_grad_()
        (grad,) = torch.autograd.grad((leaf @ x.T).softmax(1).square().sum(), leaf)
        return grad

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    product(1)
    torch.set_num_threads(threads)
    try:
        here = {n: product(n) for n in (1, 2, 3)}
        there = found(product, [1, 2, 3], threads=threads)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(here[n], there[n]) for n in here)


@pytest.mark.parametrize(
    ("error", "kind"), [(UsageError("wrong"), UsageError), (KeyError("wrong"), KeyError), (SystemExit(3), RuntimeError)]
)
def test_an_error_is_raised_here_with_its_trace_and_ends_all(
    error: BaseException, kind: type[Exception], before: set[int]
) -> None:
    def work(n: int) -> None:
        if n == 1:
            raise error
        time.sleep(30)

    began = time.monotonic()
    with pytest.raises(kind) as raised:
        found(work, [0, 1])
    assert time.monotonic() - began < 5 and not children() - before
    assert "in work" in str(raised.value.__cause__)


def test_an_error_that_cannot_be_sent_keeps_its_words() -> None:
    class Local(VitattackError):
        pass

    def work(n: int) -> None:
        raise Local("cause and fix")

    with pytest.raises(VitattackError, match="cause and fix"):
        found(work, [0, 1])


def test_notes_warnings_and_stages_arrive_and_stages_end() -> None:
    def work(n: int) -> None:
        current_listener().note(f"note {n}")
        current_listener().warn(f"warning {n}")
        warnings.warn("of Python", RuntimeWarning, stacklevel=1)
        for _ in in_stage("steps", [1, 2]):
            pass
        current_listener().stage("open", 0, 1)

    heard = Heard()
    with listening(heard), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found(work, [0, 1])
    assert sorted(heard.notes) == ["note 0", "note 1"] and sorted(heard.warned) == ["warning 0", "warning 1"]
    assert [str(each.message) for each in told] == ["of Python"] * 2
    last = {what: (done, total) for what, done, total in heard.stages}
    assert set(last.values()) == {(2, 2), (1, 1)} and all("(worker " in what for what in last)


def test_a_killed_copy_is_replaced_with_a_word(tmp_path: Path) -> None:
    def work(n: int) -> int:
        if n == 1 and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    heard = Heard()
    with listening(heard):
        assert found(work, [0, 1, 2]) == {0: 0, 1: 1, 2: 2}
    assert heard.notes == ["a worker process ended with signal 9: its images are given to another"]


def test_images_that_kill_every_copy_end_in_one_line(before: set[int]) -> None:
    with listening(Heard()), pytest.raises(VitattackError, match=f"signal 9, {MAX_ATTEMPTS} times .*--jobs 1"):
        found(lambda n: os.kill(os.getpid(), signal.SIGKILL), [0])
    assert not children() - before


def test_closing_kills_busy_copies(before: set[int]) -> None:
    with closing(spread(lambda n: time.sleep(60 * n), [0, 1, 2], 3, 1)) as answers:
        assert next(answers)[0] == 0
        assert children() - before
    assert not children() - before


DRIVER = """
import os, signal, sys, time
from vitattack.core.forked import spread

def work(n):
    os.write(1, f"{os.getpid()}\\n".encode())
    while True:
        sum(range(10**7))

try:
    list(spread(work, [1, 2], 2, 1))
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_copies_end_with_their_parent(tmp_path: Path, number: int, code: int) -> None:
    def as_in_a_terminal() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, text=True, preexec_fn=as_in_a_terminal
    )
    assert driver.stdout is not None
    copies = [ProcessId.of(int(driver.stdout.readline())) for _ in range(2)]
    driver.send_signal(number)
    began = time.monotonic()
    assert driver.wait() == code
    while not all(copy.ended() for copy in copies):
        assert time.monotonic() - began < 1
        time.sleep(0.01)
    driver.stdout.close()
