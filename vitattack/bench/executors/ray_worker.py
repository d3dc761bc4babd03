"""Code that runs on a Ray cluster: tasks, and the mailbox between them and the driver. Does not import Ray itself."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from vitattack.bench.executors.folder_sync import FilePiece, WorkerFolder, appended_files
from vitattack.bench.tasks import Listener, Outcome, Task, run_task
from vitattack.core.errors import UsageError


class Message(NamedTuple):
    """Sent by a worker: progress and changes of its files or, if `folder` is set, a request for that job's files."""

    number: int
    attempt: int
    done: int = 0
    total: int = 0
    pieces: tuple[FilePiece, ...] = ()
    folder: str | None = None


class WorkerReport(NamedTuple):
    """Returned by a worker: the outcome, and hashes that the driver's files must have by then."""

    outcome: Outcome
    hashes: dict[str, str]


@dataclass(frozen=True)
class RemoteTask:
    """A task with what its worker has to know about the driver."""

    number: int
    attempt: int
    task: Task
    version: str
    folder: str  # working folder of the driver, since texts may name files relative to it
    environment: Mapping[str, str]
    streams: bool  # the driver writes the store, the worker sends changes


class Mailbox:
    """Actor beside the driver that keeps messages until the driver takes them."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._arrived = asyncio.Event()
        self._requests: dict[tuple[int, int], asyncio.Future[Any]] = {}

    async def put(self, message: Message) -> None:
        self._messages.append(message)
        self._arrived.set()

    async def ask(self, message: Message) -> Any:
        """Put a message and wait for the driver's answer."""
        answer = self._requests[message.number, message.attempt] = asyncio.get_running_loop().create_future()
        await self.put(message)
        return await answer

    async def answer(self, number: int, attempt: int, content: Any) -> None:
        request = self._requests.pop((number, attempt), None)
        if request is not None and not request.done():
            request.set_result(content)

    async def take(self, seconds: float) -> list[Message]:
        """All messages, as soon as there is one or the time is up."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._arrived.wait(), seconds)
        messages, self._messages = self._messages, []
        self._arrived.clear()
        return messages


def work(remote: RemoteTask, mailbox: Any) -> WorkerReport:
    """Run a task on the node of this process."""
    for name, value in remote.environment.items():
        os.environ.setdefault(name, value)  # a node may have its own caches
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with suppress(OSError):
        os.chdir(remote.folder)
    if version("vitattack") != remote.version:
        raise UsageError(
            f"a worker has vitattack {version('vitattack')}, this machine {remote.version}: install the same on all"
        )
    task = replace(remote.task, data_dir=_data_dir(remote.task.data_dir))
    if not remote.streams:
        return WorkerReport(run_task(task, _MailboxListener(remote, mailbox)), {})
    with tempfile.TemporaryDirectory(prefix="vitattack-", ignore_cleanup_errors=True) as scratch:
        listener = _MailboxListener(remote, mailbox)
        outcome = run_task(replace(task, store=scratch), listener)
        listener.send()
        return WorkerReport(replace(outcome, task=remote.task), listener.hashes())


def _data_dir(asked: str | None) -> str | None:
    """The driver's folder of data sets, or the node's own if the driver's does not exist here."""
    own = os.environ.get("VITATTACK_DATA_DIR")
    return own if asked and own and not Path(asked).is_dir() else asked


class _MailboxListener(Listener):
    """Sends progress and new records to the driver."""

    def __init__(self, remote: RemoteTask, mailbox: Any) -> None:
        self._remote, self._mailbox = remote, mailbox
        self._folder: WorkerFolder | None = None
        self._progress = (0, 0)

    def keyed(self, folder: str, root: Path) -> None:
        if not self._remote.streams:
            return
        request = Message(self._remote.number, self._remote.attempt, folder=folder)
        answer = _wait(self._mailbox.ask.remote(request))
        if isinstance(answer, Exception):
            raise answer
        task = self._remote.task
        self._folder = WorkerFolder(root / folder, Path(task.store) / folder, task.shard, answer)

    def moved(self, done: int, total: int) -> None:
        self._progress = (done, total)
        self.send()

    def send(self) -> None:
        """Wait until the mailbox has the message: one that overtook another could not be applied."""
        pieces = tuple(self._folder.changes()) if self._folder else ()
        _wait(self._mailbox.put.remote(Message(self._remote.number, self._remote.attempt, *self._progress, pieces)))

    def hashes(self) -> dict[str, str]:
        """Hashes of the files that only this task writes; those of other shards may grow meanwhile."""
        sent = self._folder.sent if self._folder else {}
        own = appended_files(self._remote.task.shard)
        return {name: sha256(content).hexdigest() for name, content in sent.items() if name in own}


def _wait(reference: Any) -> Any:
    """The value of a reference; unlike `ray.get`, this does not lend the task's CPU to another while it waits."""
    return reference.future().result()
