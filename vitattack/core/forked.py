"""Work spread over forked copies of this process: they share its memory, hold none of its files, and end with it.

A copy inherits models, images and whatever was prepared, so that it starts at once and computes what this process would.
Its work runs in a thread of its own, since the threads of an OpenMP pool do not survive a fork, and each thread makes its own.
"""

from __future__ import annotations

import contextvars
import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

from vitattack.core.errors import VitattackError, sendable
from vitattack.core.new_process import Failed, Remote
from vitattack.core.processes import end_with
from vitattack.core.progress import Listener, current_listener, listening

A = TypeVar("A")
R = TypeVar("R")

MAX_ATTEMPTS = 4  # at an item whose process dies
SHOWN = 4  # processes whose stages are shown; more would fill the screen


def can_fork() -> bool:
    """Whether this system copies processes safely."""
    return sys.platform == "linux"


def spread(work: Callable[[A], R], items: Iterable[A], count: int, threads: int) -> Generator[tuple[A, R]]:
    """Yield the items with what the work makes of them as it ends, in `count` processes of `threads` threads each.

    One process is this one, and its items come in order. What the work raises, notes and warns of is raised, noted and warned of
    here. An item whose process dies is given to another one, a few times, and in the end to fewer of them.
    """
    if count == 1:
        for item in items:
            yield item, work(item)
        return
    waiting, given_back = iter(items), deque[_Task[A]]()
    crew = _Crew(work, threads)
    try:
        while True:
            while crew.busy < count and (task := _next(given_back, waiting)) is not None:
                crew.hand(task)
            if not crew.busy:
                return
            for task, answer in crew.answers():
                if isinstance(answer, _Done):
                    yield task.item, answer.result
                    continue
                if task.attempts > 1 and count > 1:
                    count -= 1  # perhaps memory is short
                _tell_or_give_up(task, answer)
                given_back.append(task)
    finally:
        crew.close()


@dataclass
class _Task(Generic[A]):
    item: A
    attempts: int = 0


class _Done(NamedTuple):
    result: Any


class _Died(NamedTuple):
    how: str


def _next(given_back: deque[_Task[A]], waiting: Iterator[A]) -> _Task[A] | None:
    if given_back:
        return given_back.popleft()
    return next((_Task(item) for item in waiting), None)


def _tell_or_give_up(task: _Task[A], died: _Died) -> None:
    if task.attempts >= MAX_ATTEMPTS:
        raise VitattackError(
            f"a worker process ended with {died.how}, {task.attempts} times at the same images: "
            "use --jobs 1 or a smaller --batch-size if it ran out of memory"
        )
    current_listener().note(f"a worker process ended with {died.how}: its images are given to another")


@dataclass
class _Copy(Generic[A]):
    """A copy of this process, and the task it works on."""

    number: int
    pid: int
    pipe: Connection
    task: _Task[A] | None = None
    stages: dict[str, int] = field(default_factory=dict)  # at work, with their totals


class _Crew(Generic[A, R]):
    """The copies of this process; a copy is made when there is work for it."""

    def __init__(self, work: Callable[[A], R], threads: int) -> None:
        self._work, self._threads = work, threads
        self._copies: list[_Copy[A]] = []

    @property
    def busy(self) -> int:
        return sum(copy.task is not None for copy in self._copies)

    def hand(self, task: _Task[A]) -> None:
        """Give a task to an idle copy, or to a new one."""
        copy = next((copy for copy in self._copies if copy.task is None), None) or self._fork()
        task.attempts += 1
        copy.task = task
        with suppress(OSError):  # `answers` notices that it has died
            copy.pipe.send_bytes(pickle.dumps(task.item))  # `send` would share the memory of tensors

    def answers(self) -> Iterator[tuple[_Task[A], _Done | _Died]]:
        """Wait for messages, and yield tasks that are done or whose process has died; errors are raised."""
        ready = wait([copy.pipe for copy in self._copies])
        for copy in [copy for copy in self._copies if copy.pipe in ready]:
            try:
                message = copy.pipe.recv()
            except (EOFError, OSError):
                self._end_stages(copy)
                self._copies.remove(copy)
                copy.pipe.close()
                if (task := copy.task) is not None:
                    yield task, _Died(_end_of(copy.pid))
                continue
            if isinstance(message, Failed):
                self._end_stages(copy)
                raise message.error from Remote(f"\n{message.trace}")
            if not isinstance(message, _Done):
                self._pass_on(copy, *message)
                continue
            assert copy.task is not None
            task, copy.task = copy.task, None
            self._end_stages(copy)
            yield task, message

    def close(self) -> None:
        """Kill the copies, which hold nothing that could be lost."""
        for copy in self._copies:
            with suppress(ProcessLookupError):
                os.kill(copy.pid, signal.SIGKILL)
        for copy in self._copies:
            copy.pipe.close()
            _end_of(copy.pid)
            self._end_stages(copy)
        self._copies.clear()

    def _pass_on(self, copy: _Copy[A], kind: str, *said: Any) -> None:
        listener = current_listener()
        if kind == "note":
            listener.note(*said)
        elif kind == "warn":
            listener.warn(*said)
        elif kind == "warning":
            text, category, filename, line = said
            warnings.warn_explicit(text, category, filename, line, registry=_WARNED)
        elif copy.number <= SHOWN:
            what, done, total = said
            copy.stages[what] = total
            listener.stage(f"{what} (worker {copy.number})", done, total)

    def _end_stages(self, copy: _Copy[A]) -> None:
        for what, total in copy.stages.items():
            current_listener().stage(f"{what} (worker {copy.number})", total, total)
        copy.stages.clear()

    def _fork(self) -> _Copy[A]:
        ours, theirs = Pipe()
        number = min({*range(1, len(self._copies) + 2)} - {copy.number for copy in self._copies})
        parent = os.getpid()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()  # or the copy would print it once more
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore", DeprecationWarning
                )  # threads are alive, but the copy needs none of them
                pid = os.fork()
            if pid == 0:
                _live(theirs, self._work, self._threads, parent, before)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()  # so that the pipe ends with the copy
        copy: _Copy[A] = _Copy(number, pid, ours)
        self._copies.append(copy)
        return copy


_WARNED: dict[Any, Any] = {}  # warnings shown before, as the module that warns would remember them


def _end_of(pid: int) -> str:
    """Wait for the end of a process; how it ended, in words."""
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # somebody else waited for it
        return "an unknown code"
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _live(pipe: Connection, work: Callable[[A], R], threads: int, parent: int, mask: set[Any]) -> NoReturn:
    """The life of a copy, which never returns to the code around the fork."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM):  # they may reach the whole process group, but the parent decides
            signal.signal(number, signal.SIG_IGN)
        end_with(parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # a screen of the parent may be locked
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(_serve, pipe, work, threads), daemon=True)
        thread.start()
        thread.join()
    finally:
        os._exit(0)


def _serve(pipe: Connection, work: Callable[[A], R], threads: int) -> None:
    """Work on items until the parent is gone."""
    import torch

    def show(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
        pipe.send(("warning", str(message), category, filename, lineno))

    torch.set_num_threads(threads)
    warnings.showwarning = show
    with listening(_ToParent(pipe)):
        while True:
            try:
                item = pipe.recv()
            except (EOFError, OSError):
                return
            answer: Any
            try:
                answer = pickle.dumps(_Done(work(item)))
            except BaseException as error:  # noqa: BLE001  # the parent raises it
                answer = pickle.dumps(Failed(sendable(error), traceback.format_exc()))
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError, AttributeError):
                    stream.flush()
            pipe.send_bytes(answer)


class _ToParent(Listener):
    """Tells the parent what the work reports."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def stage(self, what: str, done: int, total: int) -> None:
        self._pipe.send(("stage", what, done, total))

    def note(self, line: str) -> None:
        self._pipe.send(("note", line))

    def warn(self, line: str) -> None:
        self._pipe.send(("warn", line))
