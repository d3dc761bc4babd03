"""What runs on a Ray cluster: the tasks, and the mailbox through which they talk to the driver. Imports no Ray itself."""

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

from vitattack.bench.executors.sync import Growth, Piece, files_of
from vitattack.bench.run.tasks import Listener, Outcome, Task, run_task
from vitattack.core.errors import UsageError


class Letter(NamedTuple):
    """From a worker: images done, and what its files grew by; or, with a folder, a question what the store has of it."""

    number: int
    attempt: int
    done: int = 0
    total: int = 0
    pieces: tuple[Piece, ...] = ()
    folder: str | None = None


class Report(NamedTuple):
    """What a task returns: its outcome, and the hashes that the driver's files must have by now."""

    outcome: Outcome
    hashes: dict[str, str]


@dataclass(frozen=True)
class Order:
    """A task and what its worker has to know of the driver."""

    number: int
    attempt: int
    task: Task
    version: str
    folder: str  # where the driver stands, since texts may name files relative to it
    environment: Mapping[str, str]
    streams: bool  # the driver writes the store


class Mailbox:
    """An actor beside the driver. Letters are kept until the driver takes them."""

    def __init__(self) -> None:
        self._letters: list[Letter] = []
        self._news = asyncio.Event()
        self._asking: dict[tuple[int, int], asyncio.Future[Any]] = {}

    async def put(self, letter: Letter) -> None:
        self._letters.append(letter)
        self._news.set()

    async def ask(self, letter: Letter) -> Any:
        """Waits for the driver's answer."""
        answer = self._asking[letter.number, letter.attempt] = asyncio.get_running_loop().create_future()
        await self.put(letter)
        return await answer

    async def answer(self, number: int, attempt: int, content: Any) -> None:
        asking = self._asking.pop((number, attempt), None)
        if asking is not None and not asking.done():
            asking.set_result(content)

    async def take(self, seconds: float) -> list[Letter]:
        """All letters, as soon as there is one or the time is up."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), seconds)
        letters, self._letters = self._letters, []
        self._news.clear()
        return letters


def work(order: Order, mailbox: Any) -> Report:
    """Runs a task on the node this process is on."""
    for name, value in order.environment.items():
        os.environ.setdefault(name, value)  # a node may have caches of its own
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with suppress(OSError):
        os.chdir(order.folder)
    if version("vitattack") != order.version:
        raise UsageError(
            f"a worker has vitattack {version('vitattack')}, this machine {order.version}: install the same on all"
        )
    task = replace(order.task, data_dir=_data_dir(order.task.data_dir))
    if not order.streams:
        return Report(run_task(task, _Telling(order, mailbox)), {})
    with tempfile.TemporaryDirectory(prefix="vitattack-", ignore_cleanup_errors=True) as scratch:
        telling = _Telling(order, mailbox)
        outcome = run_task(replace(task, store=scratch), telling)
        telling.tell()
        return Report(replace(outcome, task=order.task), telling.hashes())


def _data_dir(asked: str | None) -> str | None:
    """The driver's folder of data sets, or the node's own where that is not there."""
    own = os.environ.get("VITATTACK_DATA_DIR")
    return own if asked and own and not Path(asked).is_dir() else asked


class _Telling(Listener):
    def __init__(self, order: Order, mailbox: Any) -> None:
        self._order, self._mailbox = order, mailbox
        self._growth: Growth | None = None
        self._progress = (0, 0)

    def keyed(self, folder: str, root: Path) -> None:
        if not self._order.streams:
            return
        question = Letter(self._order.number, self._order.attempt, folder=folder)
        answer = _wait(self._mailbox.ask.remote(question))
        if isinstance(answer, Exception):
            raise answer
        self._growth = Growth(root / folder, Path(self._order.task.store) / folder, self._order.task.shard, answer)

    def moved(self, done: int, total: int) -> None:
        self._progress = (done, total)
        self.tell()

    def tell(self) -> None:
        """The driver has it when this returns: a letter that overtakes another would be useless."""
        pieces = tuple(self._growth.pieces()) if self._growth else ()
        _wait(self._mailbox.put.remote(Letter(self._order.number, self._order.attempt, *self._progress, pieces)))

    def hashes(self) -> dict[str, str]:
        """Of the files that only this task writes: those of other shards grow meanwhile."""
        there = self._growth.there if self._growth else {}
        mine = files_of(self._order.task.shard)
        return {name: sha256(content).hexdigest() for name, content in there.items() if name in mine}


def _wait(reference: Any) -> Any:
    """Not by ray.get, which would lend this task's CPU to another while it waits."""
    return reference.future().result()
