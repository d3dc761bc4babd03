"""Executor on a Ray cluster: an existing one, or one on this machine that ends with the run."""

from __future__ import annotations

import logging
import math
import os
import signal
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from vitattack.bench.executors.executor import MAX_ATTEMPTS, BenchProgress
from vitattack.bench.executors.folder_sync import OutOfStep, StoreFolder
from vitattack.bench.executors.ray_worker import Mailbox, Message, RemoteTask, WorkerReport, work
from vitattack.bench.tasks import Outcome, Task, failed
from vitattack.core.errors import UsageError, VitattackError, first_line

SECONDS_TO_STOP = 10.0
# Variables that workers inherit from the driver unless their node sets them. Tokens are not passed on.
FOLDER_VARIABLES = ("VITATTACK_HOME", "VITATTACK_DATA_DIR", "HF_HOME", "HF_HUB_CACHE", "TORCH_HOME")
OTHER_VARIABLES = ("HF_HUB_OFFLINE", "HF_ENDPOINT")


@dataclass(frozen=True)
class RayExecutor:
    """`jobs` workers on this machine or, with an `address`, as many as the cluster has room for.

    The driver writes the records as they stream back, or the workers do if all of them see the store at the same path.
    """

    address: str | None = None
    jobs: int | None = None
    cpus: float | None = None  # per task; default: its threads
    gpus: float | None = None  # per task; default: one if the cluster has any
    writers: Literal["driver", "workers"] = "driver"

    def run(self, tasks: Sequence[Task], progress: BenchProgress) -> Generator[Outcome]:
        if any(":" in task.device for task in tasks):
            raise UsageError("Ray chooses the GPU of each task: write --device cuda")
        if not tasks:
            return
        with self._cluster(max(task.threads for task in tasks)) as ray:
            placed = self._place(ray.cluster_resources(), tasks, progress)
            running = _RunningTasks(ray, tasks, placed, progress, streams=self.writers == "driver")
            try:
                while running:
                    yield from running.listen()
            finally:
                running.abort()

    @contextmanager
    def _cluster(self, threads: int) -> Iterator[Any]:
        try:
            import ray
        except ImportError:
            raise UsageError("Ray is not installed: pip install 'vitattack[ray]', or use --jobs N without it") from None
        if ray.is_initialized():  # by a caller from Python, who also shuts it down
            yield ray
            return
        address = self.address or os.environ.get("RAY_ADDRESS") or "local"
        settings: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": logging.ERROR}
        if address == "local":
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere unasked
            from vitattack.core.runtime import usable_cores

            cpus = math.ceil(self.jobs * (self.cpus or threads)) if self.jobs else usable_cores()
            settings |= {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": 200 << 20}
        elif self.jobs is not None:
            raise UsageError("--jobs is for this machine, a cluster runs as many tasks as it has room for: drop it")
        before = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(**settings)
        except Exception as error:  # each transport raises its own kinds
            reason = first_line(error)[:160]
            action = f"reach Ray at '{address}'" if address != "local" else "start Ray on this machine"
            fix = "start it there, or drop --address" if address != "local" else "use --jobs N without --executor ray"
            raise UsageError(f"cannot {action} ({type(error).__name__}: {reason}): {fix}") from error
        finally:
            signal.signal(signal.SIGTERM, before)
        try:
            yield ray
        finally:
            ray.shutdown()

    def _place(
        self, resources: dict[str, float], tasks: Sequence[Task], progress: BenchProgress
    ) -> list[tuple[Task, dict[str, float]]]:
        """Tasks with their devices resolved, and the resources that each needs on a node."""
        available = {"num_gpus": resources.get("GPU", 0), "num_cpus": resources.get("CPU", 0)}
        placed = []
        for task in tasks:
            on_gpu = task.device == "cuda" or (task.device == "auto" and available["num_gpus"])
            gpus = (1.0 if on_gpu else 0.0) if self.gpus is None else self.gpus
            device = ("cuda" if gpus else "cpu") if task.device == "auto" else task.device
            placed.append((replace(task, device=device), {"num_cpus": self.cpus or task.threads, "num_gpus": gpus}))
        for resource, amount in available.items():
            most = max(share[resource] for _, share in placed)
            if most > amount:
                unit = resource[4:].upper()
                progress.note(f"a task needs {most:g} {unit}, the cluster has {amount:g}: waiting for it to grow")
        return placed


class _RunningTasks:
    """The tasks of one run on the cluster, and the folders of the store that they fill."""

    def __init__(
        self,
        ray: Any,
        tasks: Sequence[Task],
        placed: Sequence[tuple[Task, dict[str, float]]],
        progress: BenchProgress,
        *,
        streams: bool,
    ) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._ray, self._tasks, self._placed, self._progress, self._streams = ray, tasks, placed, progress, streams
        self._attempts = [0] * len(tasks)
        self._incomplete: set[int] = set()  # tasks of which a piece was lost
        self._folders: dict[int, StoreFolder] = {}
        self._references: dict[Any, int] = {}
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._mailbox = (
            ray.remote(Mailbox)
            .options(
                num_cpus=0, max_restarts=-1, max_task_retries=-1, max_concurrency=100_000, scheduling_strategy=here
            )
            .remote()
        )
        self._environment = environment()
        self._work = ray.remote(work)
        self._messages = self._mailbox.take.remote(0.5)
        for number in range(len(tasks)):
            self._launch(number)

    def __bool__(self) -> bool:
        """Whether any task has not ended yet."""
        return bool(self._references)

    def _launch(self, number: int) -> None:
        task, share = self._placed[number]
        self._attempts[number] += 1
        self._incomplete.discard(number)
        remote = RemoteTask(
            number=number,
            attempt=self._attempts[number],
            task=replace(task, fresh=task.fresh and self._attempts[number] == 1),
            version=version("vitattack"),
            folder=str(Path.cwd()),
            environment=self._environment,
            streams=self._streams,
        )
        # Retries are ours: the records that a lost worker has sent are kept, which Ray does not know about.
        options = {**share, "max_retries": 0, "name": task.name}
        self._references[self._work.options(**options).remote(remote, self._mailbox)] = number

    def listen(self) -> Iterator[Outcome]:
        """Wait for messages and ended tasks, and yield outcomes."""
        waiting = [self._messages, *self._references]
        self._ray.wait(waiting, num_returns=1, timeout=5.0)
        ready = self._ray.wait(waiting, num_returns=len(waiting), timeout=0)[0]
        if self._messages in ready:
            self._read()
        for reference in (each for each in ready if each in self._references):
            self._read(everything=True)  # messages that the worker sent before it ended
            yield from self._ended(self._references.pop(reference), reference)

    def _read(self, *, everything: bool = False, again: bool = True, timeout: float | None = None) -> None:
        messages = self._ray.get(self._messages, timeout=timeout)
        if everything:  # those that arrived since
            messages += self._ray.get(self._mailbox.take.remote(0.0), timeout=timeout)
        if again:
            self._messages = self._mailbox.take.remote(0.5)
        for message in messages:
            sender = message.number, message.attempt
            if message.attempt != self._attempts[message.number]:  # from a worker that was taken for lost
                self._mailbox.answer.remote(*sender, VitattackError("this task runs elsewhere"))
            elif message.folder is not None:
                self._mailbox.answer.remote(*sender, self._open_folder(message.number, message.folder))
            else:
                self._write(message)
                if message.total:
                    self._progress.moved(self._tasks[message.number], message.done, message.total)

    def _open_folder(self, number: int, name: str) -> dict[str, bytes] | VitattackError:
        """Files of a job in the store, locked from now on."""
        self._close_folder(number)
        task = self._tasks[number]
        if Path(name).name != name:
            return VitattackError(f"a worker asked for the folder {name[:80]!r}: it runs another version")
        try:
            fresh = task.fresh and self._attempts[number] == 1
            folder = self._folders[number] = StoreFolder(Path(task.store) / name, task.shard, fresh=fresh)
            return folder.files(own_only=task.fresh)  # records of other shards may be older than this run
        except VitattackError as error:
            return error

    def _write(self, message: Message) -> None:
        folder = self._folders.get(message.number)
        if folder is None or message.number in self._incomplete:
            return
        try:
            for piece in message.pieces:
                folder.apply(piece)
        except OutOfStep:
            self._incomplete.add(message.number)

    def _ended(self, number: int, reference: Any) -> Iterator[Outcome]:
        """The outcome of a task, unless it has to be launched again."""
        task = self._tasks[number]
        folder = self._folders.get(number)
        try:
            report: WorkerReport = self._ray.get(reference)
        except (self._ray.exceptions.RayTaskError, self._ray.exceptions.RuntimeEnvSetupError) as error:
            self._close_folder(number)
            own = error.cause if isinstance(error, self._ray.exceptions.RayTaskError) else None
            yield failed(task, own or error)
            return
        except self._ray.exceptions.RayError as error:
            reason = f"its worker was lost ({type(error).__name__})"
        else:
            if folder is None or folder.matches(report.hashes):
                self._close_folder(number)
                yield replace(report.outcome, task=task)
                return
            reason = "a part of its records was lost on its way"
        self._close_folder(number)
        if self._attempts[number] < MAX_ATTEMPTS:
            self._progress.note(f"{task.name}: {reason}, starting it again")
            self._launch(number)
        else:
            fix = "use a smaller batch_size or more CPUs per task if it ran out of memory"
            yield failed(task, VitattackError(f"{reason}, {MAX_ATTEMPTS} times: {fix}"))

    def _close_folder(self, number: int) -> None:
        folder = self._folders.pop(number, None)
        if folder is not None:
            folder.close()

    def abort(self) -> None:
        """Stop running tasks, first politely, then by force; batches that have been sent are still written."""
        references = [*self._references]
        self._references.clear()
        with suppress(Exception):
            for force in (False, True):
                for reference in references:
                    self._ray.cancel(reference, force=force)
                if references:
                    references = self._ray.wait(references, num_returns=len(references), timeout=SECONDS_TO_STOP)[1]
            self._read(everything=True, again=False, timeout=SECONDS_TO_STOP)
            self._ray.kill(self._mailbox)
        for number in [*self._folders]:
            self._close_folder(number)


def environment() -> dict[str, str]:
    """Variables that workers inherit, with folders made absolute."""
    names = {name for name in os.environ if name.startswith("VITATTACK_")} | {*FOLDER_VARIABLES, *OTHER_VARIABLES}
    inherited = {name: os.environ[name] for name in sorted(names) if os.environ.get(name)}
    return {
        name: str(Path(value).expanduser().absolute()) if name in FOLDER_VARIABLES else value
        for name, value in inherited.items()
    }
