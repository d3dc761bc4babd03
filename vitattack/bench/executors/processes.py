"""Several processes on this machine: each takes a task at a time, and one that dies costs nothing but its last batch."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from vitattack.bench.executors.base import TRIES, Progress
from vitattack.bench.run.tasks import Listener, Outcome, Task, failed, run_task
from vitattack.core.errors import UsageError, VitattackError


@dataclass(frozen=True)
class Processes:
    """So many processes; where the machine has several GPUs they are dealt out in turn."""

    jobs: int

    def __post_init__(self) -> None:
        if not 1 <= self.jobs <= 1024:
            raise UsageError(f"{self.jobs} jobs are too few or too many: use 1 to 1024")

    def run(self, tasks: Sequence[Task], progress: Progress) -> Generator[Outcome]:
        crew = _Crew(tasks, progress, _gpus(tasks) if self.jobs > 1 else [])
        try:
            while crew.hand_out(self.jobs):
                yield from crew.listen()
        finally:
            crew.dismiss()


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    number: int | None = None  # of the task it works on


class _Crew:
    """The processes of one run, and who works on what."""

    def __init__(self, tasks: Sequence[Task], progress: Progress, gpus: Sequence[str]) -> None:
        self._tasks, self._progress, self._gpus = tasks, progress, gpus
        self._waiting = deque(range(len(tasks)))
        self._tries = [0] * len(tasks)
        self._workers: dict[int, _Worker] = {}

    def hand_out(self, jobs: int) -> bool:
        """A task to everybody who is idle; whether anybody is busy."""
        for slot in range(jobs):
            if not self._waiting:
                break
            if slot not in self._workers:
                self._workers[slot] = _start(self._gpus[slot % len(self._gpus)] if self._gpus else None)
            worker = self._workers[slot]
            if worker.number is None:
                worker.number = number = self._waiting.popleft()
                self._tries[number] += 1
                task = self._tasks[number]
                with suppress(OSError):  # a process that is gone is noticed when it is listened to
                    worker.pipe.send(replace(task, fresh=task.fresh and self._tries[number] == 1))
        return any(worker.number is not None for worker in self._workers.values())

    def listen(self) -> Iterator[Outcome]:
        """Waits for news; the outcomes among them."""
        ready = wait([worker.pipe for worker in self._workers.values()])
        for slot, worker in [*self._workers.items()]:
            if worker.pipe not in ready:
                continue
            try:
                message = worker.pipe.recv()
            except (EOFError, OSError):
                del self._workers[slot]
                yield from self._lost(worker)
                continue
            assert worker.number is not None
            task = self._tasks[worker.number]
            if isinstance(message, Outcome):
                worker.number = None
                yield replace(message, task=task)
            else:
                self._progress.moved(task, *message)

    def _lost(self, worker: _Worker) -> Iterator[Outcome]:
        worker.process.join()
        if worker.number is None:
            return
        task, code = self._tasks[worker.number], worker.process.exitcode or 0
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        if self._tries[worker.number] < TRIES:
            self._progress.note(f"{task.name}: its process ended with {how}, starting it again")
            self._waiting.appendleft(worker.number)
        else:
            fix = "use a smaller batch_size or fewer --jobs if memory ended"
            yield failed(task, VitattackError(f"its process ended with {how}, {TRIES} times: {fix}"))

    def dismiss(self) -> None:
        """Whole batches are stored, so nobody needs to say goodbye."""
        for worker in self._workers.values():
            worker.process.terminate()
        for worker in self._workers.values():
            worker.process.join()
            worker.pipe.close()


def _start(gpu: str | None) -> _Worker:
    context = multiprocessing.get_context("spawn")  # forked CUDA contexts and thread pools are broken
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, gpu), daemon=True)
    process.start()
    theirs.close()  # so that the end of the process is the end of the pipe
    return _Worker(process, ours)


def _serve(pipe: Connection, gpu: str | None) -> None:
    """The life of a worker: tasks in, progress and outcomes out, until nobody listens."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the driver decides
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    with suppress(EOFError, OSError):
        while True:
            pipe.send(run_task(pipe.recv(), _Piped(pipe)))


class _Piped(Listener):
    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def moved(self, done: int, total: int) -> None:
        try:
            self._pipe.send((done, total))
        except OSError:
            raise SystemExit from None  # the driver is gone; what is stored is stored


def _gpus(tasks: Sequence[Task]) -> list[str]:
    """What CUDA_VISIBLE_DEVICES has to say for each GPU, where there are several to choose from."""
    if not any(task.device in ("auto", "cuda") for task in tasks):
        return []
    import torch

    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (named.split(",")[:count] if named else [str(number) for number in range(count)]) if count > 1 else []
