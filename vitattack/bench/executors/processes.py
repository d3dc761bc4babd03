"""Executor with several processes on this machine; one that dies costs at most its current batch."""

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

from vitattack.bench.executors.executor import MAX_ATTEMPTS, BenchProgress, SerialExecutor
from vitattack.bench.tasks import Listener, Outcome, Task, failed, run_task
from vitattack.core import progress
from vitattack.core.errors import UsageError, VitattackError
from vitattack.core.processes import end_with_parent
from vitattack.core.progress import listening
from vitattack.core.runtime import several_gpus


@dataclass(frozen=True)
class ProcessExecutor:
    """Runs `jobs` processes; on a machine with several GPUs each process gets one, in turn."""

    jobs: int

    def __post_init__(self) -> None:
        if not 1 <= self.jobs <= 1024:
            raise UsageError(f"{self.jobs} jobs are too few or too many: use 1 to 1024")

    def run(self, tasks: Sequence[Task], progress: BenchProgress) -> Generator[Outcome]:
        pool = _WorkerPool(tasks, progress, _gpus(tasks) if self.jobs > 1 else [])
        try:
            while pool.hand_out(self.jobs):
                yield from pool.listen()
        finally:
            pool.close()


class MachineExecutor:
    """A process per GPU where there are several, else one task after the other, each in as many processes as suit it."""

    def run(self, tasks: Sequence[Task], progress: BenchProgress) -> Generator[Outcome]:
        gpus = len(_gpus(tasks))
        executor = ProcessExecutor(gpus) if gpus else SerialExecutor(jobs=None)
        yield from executor.run(tasks, progress)


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    number: int | None = None  # of the task it is working on


class _WorkerPool:
    """The processes of one run and the tasks they work on."""

    def __init__(self, tasks: Sequence[Task], progress: BenchProgress, gpus: Sequence[str]) -> None:
        self._tasks, self._progress, self._gpus = tasks, progress, gpus
        self._waiting = deque(range(len(tasks)))
        self._attempts = [0] * len(tasks)
        self._workers: dict[int, _Worker] = {}

    def hand_out(self, jobs: int) -> bool:
        """Give a task to every idle worker; whether any worker is busy."""
        for slot in range(jobs):
            if not self._waiting:
                break
            if slot not in self._workers:
                self._workers[slot] = _start(self._gpus[slot % len(self._gpus)] if self._gpus else None)
            worker = self._workers[slot]
            if worker.number is None:
                worker.number = number = self._waiting.popleft()
                self._attempts[number] += 1
                task = self._tasks[number]
                with suppress(OSError):  # `listen` notices that the process has died
                    worker.pipe.send(replace(task, fresh=task.fresh and self._attempts[number] == 1))
        return any(worker.number is not None for worker in self._workers.values())

    def listen(self) -> Iterator[Outcome]:
        """Wait for messages of workers, and yield the outcomes among them."""
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
            elif isinstance(message, str):
                self._progress.note(f"{task.name}: {message}")
            else:
                self._progress.moved(task, *message)

    def _lost(self, worker: _Worker) -> Iterator[Outcome]:
        """Queue the task of a dead worker again, or give it up after too many attempts."""
        worker.process.join()
        if worker.number is None:
            return
        task, code = self._tasks[worker.number], worker.process.exitcode or 0
        reason = f"signal {-code}" if code < 0 else f"exit code {code}"
        if self._attempts[worker.number] < MAX_ATTEMPTS:
            self._progress.note(f"{task.name}: its process ended with {reason}, starting it again")
            self._waiting.appendleft(worker.number)
        else:
            fix = "use a smaller batch_size or fewer --jobs if it ran out of memory"
            yield failed(task, VitattackError(f"its process ended with {reason}, {MAX_ATTEMPTS} times: {fix}"))

    def close(self) -> None:
        """Terminate all workers; finished batches are stored, so they need no warning."""
        for worker in self._workers.values():
            worker.process.terminate()
        for worker in self._workers.values():
            worker.process.join()
            worker.pipe.close()


def _start(gpu: str | None) -> _Worker:
    context = multiprocessing.get_context("spawn")  # CUDA contexts and thread pools do not survive a fork
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, gpu), daemon=True)
    process.start()
    theirs.close()  # so that the pipe ends with the process
    return _Worker(process, ours)


def _serve(pipe: Connection, gpu: str | None) -> None:
    """Main loop of a worker: receives tasks, sends progress and outcomes, until the driver is gone."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group, but the driver decides
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    with suppress(EOFError, OSError), listening(_PipeNotes(pipe)):
        while True:
            pipe.send(run_task(pipe.recv(), _PipeListener(pipe)))


class _PipeNotes(progress.Listener):
    """Sends what long waits are for to the driver."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def note(self, line: str) -> None:
        with suppress(OSError):
            self._pipe.send(line)


class _PipeListener(Listener):
    """Sends the progress of a task to the driver."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def moved(self, done: int, total: int) -> None:
        try:
            self._pipe.send((done, total))
        except OSError:
            raise SystemExit from None  # the driver is gone; finished batches are stored


def _gpus(tasks: Sequence[Task]) -> list[str]:
    """The GPUs of the machine, if there are several and tasks may choose."""
    return next((gpus for device in {task.device for task in tasks} if (gpus := several_gpus(device))), [])
