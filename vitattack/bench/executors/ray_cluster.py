"""Tasks on a Ray cluster: one that is there, or one of this machine alone that ends with the run."""

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

from vitattack.bench.executors.base import TRIES, Progress
from vitattack.bench.executors.ray_worker import Letter, Mailbox, Order, Report, work
from vitattack.bench.executors.sync import Copy, OutOfStep
from vitattack.bench.run.tasks import Outcome, Task, failed
from vitattack.core.errors import UsageError, VitattackError, first_line

SECONDS_TO_STOP = 10.0
# What a worker takes over from the driver unless its node says otherwise. Tokens stay where they are.
FOLDERS = ("VITATTACK_HOME", "VITATTACK_DATA_DIR", "HF_HOME", "HF_HUB_CACHE", "TORCH_HOME")
WORDS = ("HF_HUB_OFFLINE", "HF_ENDPOINT")


@dataclass(frozen=True)
class OnRay:
    """`jobs` workers on this machine or, with an `address`, as many as the cluster has room for.

    Records are written by the driver as they stream back, or by the workers where all see the store at the same path.
    """

    address: str | None = None
    jobs: int | None = None
    cpus: float | None = None  # of a task; default: its threads
    gpus: float | None = None  # of a task; default: one where the cluster has any
    writers: Literal["driver", "workers"] = "driver"

    def run(self, tasks: Sequence[Task], progress: Progress) -> Generator[Outcome]:
        if any(":" in task.device for task in tasks):
            raise UsageError("Ray chooses the GPU of each task: write --device cuda")
        if not tasks:
            return
        with self._cluster(max(task.threads for task in tasks)) as ray:
            shares = self._shares(ray.cluster_resources(), tasks, progress)
            flight = _Flight(ray, tasks, shares, progress, streams=self.writers == "driver")
            try:
                while flight.tasks_in_the_air():
                    yield from flight.listen()
            finally:
                flight.abort()

    @contextmanager
    def _cluster(self, threads: int) -> Iterator[Any]:
        try:
            import ray
        except ImportError:
            raise UsageError("Ray is not installed: pip install 'vitattack[ray]', or use --jobs N without it") from None
        if ray.is_initialized():  # by whoever calls this from Python, who also ends it
            yield ray
            return
        address = self.address or os.environ.get("RAY_ADDRESS") or "local"
        settings: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": logging.ERROR}
        if address == "local":
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere unasked
            cpus = math.ceil((self.jobs or _cores()) * (self.cpus or threads)) if self.jobs else _cores()
            settings |= {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": 200 << 20}
        elif self.jobs is not None:
            raise UsageError("--jobs is for this machine, a cluster runs as many tasks as it has room for: drop it")
        before = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(**settings)
        except Exception as error:  # the transports raise their own kinds
            reason = first_line(error)[:160]
            what = f"reach Ray at '{address}'" if address != "local" else "start Ray on this machine"
            fix = "start it there, or drop --address" if address != "local" else "use --jobs N without --executor ray"
            raise UsageError(f"cannot {what} ({type(error).__name__}: {reason}): {fix}") from error
        finally:
            signal.signal(signal.SIGTERM, before)
        try:
            yield ray
        finally:
            ray.shutdown()

    def _shares(
        self, resources: dict[str, float], tasks: Sequence[Task], progress: Progress
    ) -> list[tuple[Task, dict[str, float]]]:
        """Every task with its device settled, and what it takes of a node."""
        there = resources.get("GPU", 0)
        found = []
        for task in tasks:
            wanted = 1.0 if task.device == "cuda" or (task.device == "auto" and there) else 0.0
            gpus = wanted if self.gpus is None else self.gpus
            device = ("cuda" if gpus else "cpu") if task.device == "auto" else task.device
            found.append((replace(task, device=device), {"num_cpus": self.cpus or task.threads, "num_gpus": gpus}))
        for what, have in (("num_gpus", there), ("num_cpus", resources.get("CPU", 0))):
            most = max(share[what] for _, share in found)
            if most > have:
                progress.note(
                    f"a task wants {most:g} {what[4:].upper()}, the cluster has {have:g}: waiting for it to grow"
                )
        return found


class _Flight:
    """The tasks of one run, and who is in the air."""

    def __init__(
        self,
        ray: Any,
        tasks: Sequence[Task],
        shares: Sequence[tuple[Task, dict[str, float]]],
        progress: Progress,
        *,
        streams: bool,
    ) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._ray, self._tasks, self._shares, self._progress, self._streams = ray, tasks, shares, progress, streams
        self._tries = [0] * len(tasks)
        self._lost_parts: set[int] = set()
        self._copies: dict[int, Copy] = {}
        self._refs: dict[Any, int] = {}
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
        self._taking = self._mailbox.take.remote(0.5)
        for number in range(len(tasks)):
            self._launch(number)

    def tasks_in_the_air(self) -> bool:
        return bool(self._refs)

    def _launch(self, number: int) -> None:
        task, share = self._shares[number]
        self._tries[number] += 1
        self._lost_parts.discard(number)
        order = Order(
            number=number,
            attempt=self._tries[number],
            task=replace(task, fresh=task.fresh and self._tries[number] == 1),
            version=version("vitattack"),
            folder=str(Path.cwd()),
            environment=self._environment,
            streams=self._streams,
        )
        # Tried again by us: what a lost worker has sent is kept, which Ray knows nothing of.
        options = {**share, "max_retries": 0, "name": task.name}
        self._refs[self._work.options(**options).remote(order, self._mailbox)] = number

    def listen(self) -> Iterator[Outcome]:
        """Waits for news; the outcomes among them."""
        waiting = [self._taking, *self._refs]
        self._ray.wait(waiting, num_returns=1, timeout=5.0)
        ready = self._ray.wait(waiting, num_returns=len(waiting), timeout=0)[0]
        if self._taking in ready:
            self._read()
        for ref in (ref for ref in ready if ref in self._refs):
            self._read(everything=True)  # what the worker said before it ended
            yield from self._landed(self._refs.pop(ref), ref)

    def _read(self, *, everything: bool = False, again: bool = True, timeout: float | None = None) -> None:
        letters = self._ray.get(self._taking, timeout=timeout)
        if everything:  # those that came after the last taking
            letters += self._ray.get(self._mailbox.take.remote(0.0), timeout=timeout)
        if again:
            self._taking = self._mailbox.take.remote(0.5)
        for letter in letters:
            if letter.attempt != self._tries[letter.number]:  # of a worker that was taken for lost
                self._mailbox.answer.remote(letter.number, letter.attempt, VitattackError("this task runs elsewhere"))
            elif letter.folder is not None:
                self._mailbox.answer.remote(letter.number, letter.attempt, self._opened(letter.number, letter.folder))
            else:
                self._write(letter)
                if letter.total:
                    self._progress.moved(self._tasks[letter.number], letter.done, letter.total)

    def _opened(self, number: int, folder: str) -> dict[str, bytes] | VitattackError:
        """What the store has of a job, which nobody else writes from now on."""
        self._close(number)
        task = self._tasks[number]
        if Path(folder).name != folder:
            return VitattackError(f"a worker asked for the folder {folder[:80]!r}: it runs another version")
        try:
            fresh = task.fresh and self._tries[number] == 1
            copy = self._copies[number] = Copy(Path(task.store) / folder, task.shard, fresh=fresh)
            return copy.seed(alone=task.fresh)  # what other shards left there may be older than this run
        except VitattackError as error:
            return error

    def _write(self, letter: Letter) -> None:
        copy = self._copies.get(letter.number)
        if copy is None or letter.number in self._lost_parts:
            return
        try:
            for piece in letter.pieces:
                copy.apply(piece)
        except OutOfStep:
            self._lost_parts.add(letter.number)

    def _landed(self, number: int, ref: Any) -> Iterator[Outcome]:
        task = self._tasks[number]
        copy = self._copies.get(number)
        try:
            report: Report = self._ray.get(ref)
        except (self._ray.exceptions.RayTaskError, self._ray.exceptions.RuntimeEnvSetupError) as error:
            self._close(number)
            yield failed(task, error.cause if getattr(error, "cause", None) else error)
            return
        except self._ray.exceptions.RayError as error:
            reason = f"its worker was lost ({type(error).__name__})"
        else:
            if copy is None or copy.whole(report.hashes):
                self._close(number)
                yield replace(report.outcome, task=task)
                return
            reason = "a part of its records was lost on its way"
        self._close(number)
        if self._tries[number] < TRIES:
            self._progress.note(f"{task.name}: {reason}, starting it again")
            self._launch(number)
        else:
            fix = "use a smaller batch_size or more CPUs a task if memory ended"
            yield failed(task, VitattackError(f"{reason}, {TRIES} times: {fix}"))

    def _close(self, number: int) -> None:
        copy = self._copies.pop(number, None)
        if copy is not None:
            copy.close()

    def abort(self) -> None:
        """Stops what runs, politely first; whole batches that are under way are still written."""
        refs = [*self._refs]
        self._refs.clear()
        with suppress(Exception):
            for force in (False, True):
                for ref in refs:
                    self._ray.cancel(ref, force=force)
                if refs:
                    refs = self._ray.wait(refs, num_returns=len(refs), timeout=SECONDS_TO_STOP)[1]
            self._read(everything=True, again=False, timeout=SECONDS_TO_STOP)
            self._ray.kill(self._mailbox)
        for number in [*self._copies]:
            self._close(number)


def environment() -> dict[str, str]:
    """The variables that workers take over, folders among them made absolute."""
    names = {name for name in os.environ if name.startswith("VITATTACK_")} | {*FOLDERS, *WORDS}
    given = {name: os.environ[name] for name in sorted(names) if os.environ.get(name)}
    return {n: str(Path(v).expanduser().absolute()) if n in FOLDERS else v for n, v in given.items()}


def _cores() -> int:
    from vitattack.core.runtime import usable_cores

    return usable_cores()
