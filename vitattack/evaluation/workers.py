"""Workers of a run: how many processes of how many threads, as requested or as a short measurement on this machine says.

The number of threads is part of a job's key, that of processes is not: it changes no record.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from vitattack.attacks.price import Price
from vitattack.core.errors import UsageError
from vitattack.core.forked import can_fork
from vitattack.core.progress import stage
from vitattack.core.runtime import free_memory, numerics, usable_cores
from vitattack.models.victim import Victim, frozen
from vitattack.records.job import Job

SMALL = 3.0  # seconds of one thread; splitting less work costs more than it saves, and on a busy machine far more
UNPRICED = 200  # passes per image, of an attack that does not know
MEASURED = 0.05  # seconds of a step that is long enough to be measured
REPEATS = 3
CLOSE = 1.1  # times this much slower, fewer processes are preferred: they need less memory
MEMORY_SHARE = 0.7  # of the free memory, for all processes together
OVERHEAD = 2.0  # memory of a step, relative to what its backward keeps


class Workers(NamedTuple):
    """Processes, the threads of each, and the reason where nobody asked for them."""

    processes: int
    threads: int
    reason: str = ""

    def record(self) -> dict[str, int | str]:
        """For provenance."""
        return {"processes": self.processes, "threads": self.threads} | ({"reason": self.reason} if self.reason else {})


def check_jobs(jobs: int, device: torch.device) -> None:
    """Refuse worker processes where none can be made."""
    if jobs > 1 and (why := _why_not(device)):
        raise UsageError(f"{jobs} jobs are too many here, since {why}: use --jobs 1, or --shard K/N in each process")


def _why_not(device: torch.device) -> str:
    if not can_fork():
        return "only Linux copies processes"
    if device.type != "cpu":
        return f"{device.type} devices do not follow into a copied process"
    if torch.cuda.is_available():  # autograd refuses to work in a copy
        return "CUDA devices are visible, which do not follow into a copied process (CUDA_VISIBLE_DEVICES= hides them)"
    return ""


def _powers(cores: int) -> list[int]:
    """Powers of two up to the number of cores."""
    return [2**power for power in range(11) if 2**power <= cores]


def alone(threads: int | None) -> Workers:
    """This process, with all cores unless other threads are asked for."""
    return Workers(1, threads or usable_cores())


def decided(
    root: Path, job: Job, victim: Victim, price: Price | None, images: int, at_once: int, threads: int | None
) -> Workers:
    """The workers that this machine attacks fastest with, or those that a stored run of the job was begun with.

    The attack is given `at_once` images at a time, which one worker does.
    """
    if _why_not(victim.mean.device):
        return alone(threads)
    return _begun(root, job, threads) or _fitting(victim, price, images, at_once, job.batch_size, threads)


def _begun(root: Path, job: Job, threads: int | None) -> Workers | None:
    """Workers for a run that the store holds, finished or not: its threads are part of its key."""
    cores = usable_cores()
    for name in ("result.json", "job.json"):
        for number in [threads] if threads else [cores, *_powers(cores)]:
            if (root / replace(job, threads=number).folder / name).exists():
                return Workers(max(1, cores // number), number, "threads as when it was begun")
    return None


def _fitting(
    victim: Victim, price: Price | None, images: int, at_once: int, batch_size: int, threads: int | None
) -> Workers:
    """Workers for an attack on so many images, by measuring gradient steps."""
    cores, blocks = usable_cores(), math.ceil(images / at_once)
    if cores == 1 or (blocks == 1 and threads is not None):
        return alone(threads)
    with stage("measuring the speed of this machine"):
        speed = measured(victim, batch_size, [threads or 1])
        if not speed.seconds:
            return alone(threads)
        if _seconds_of_one_thread(speed, price, images) < SMALL:
            return alone(threads or 1)
        if threads is None and min(blocks, speed.fitting(free_memory(), cores)) < cores:
            speed = measured(victim, batch_size, _powers(cores))  # not every core gets a process of its own
    return quickest(speed, blocks, cores, free_memory())


def _seconds_of_one_thread(speed: Speed, price: Price | None, images: int) -> float:
    """The work of an attack."""
    passes = price.victim.total if price is not None else UNPRICED
    return min(images * passes / 2 * seconds * threads for threads, seconds in speed.seconds.items())


class Speed(NamedTuple):
    """Seconds of a forward and backward per image by threads, and the bytes that a batch of them needs."""

    seconds: Mapping[int, float]
    memory: int = 0

    def fitting(self, free: int | None, most: int) -> int:
        """The processes that fit into the free memory."""
        return most if free is None else max(1, min(most, int(MEMORY_SHARE * free / max(1, self.memory))))


def quickest(speed: Speed, blocks: int, cores: int, memory: int | None) -> Workers:
    """The workers that end first; nearly as fast ones if they are fewer."""
    fits = speed.fitting(memory, cores)
    found: dict[int, tuple[float, Workers]] = {}
    for threads, seconds in speed.seconds.items():
        count = min(blocks, max(1, cores // threads), fits)
        found[threads] = math.ceil(blocks / count) * seconds, Workers(count, threads)
    least = min(rounds for rounds, _ in found.values())
    best = max((workers for rounds, workers in found.values() if rounds <= CLOSE * least), key=lambda w: w.threads)
    rates = ", ".join(f"{1 / seconds:.3g} with {_threads(count)}" for count, seconds in speed.seconds.items())
    return best._replace(reason=f"measured gradient steps on an image per second: {rates}")


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def measured(victim: Victim, batch_size: int, threads: Sequence[int]) -> Speed:
    """The speed of gradient steps: the best of a few, in turns, so that a moment of other load decides nothing.

    More threads than one that are slower than it, as on a busy machine, are not tried again.
    """
    try:
        with torch.random.fork_rng(devices=[]), frozen(victim):
            with numerics(threads[0]):
                _step(victim, 1)  # warm up
                count = 1
                while count < batch_size and _seconds(victim, count) < MEASURED:
                    count = min(batch_size, 2 * count)
                memory = int(OVERHEAD * _kept(victim, count) / count * batch_size)
            best = dict.fromkeys(threads, 0.0)
            for _ in range(REPEATS):
                for number in [number for number in threads if best[number] <= best[threads[0]]]:
                    with numerics(number):
                        best[number] = min(best[number] or math.inf, _seconds(victim, count))
    except (RuntimeError, ValueError, TypeError):  # a model without gradients, or one that fails: the run will tell
        return Speed({})
    return Speed({number: seconds / count for number, seconds in best.items()}, memory)


def _step(victim: Victim, count: int) -> None:
    x = victim.grey(count).requires_grad_()
    torch.autograd.grad(victim(x).sum(), x)


def _seconds(victim: Victim, count: int) -> float:
    began = time.perf_counter()
    _step(victim, count)
    return time.perf_counter() - began


def _kept(victim: Victim, count: int) -> int:
    """Bytes that a forward keeps for its backward, besides the weights."""
    weights = {tensor.untyped_storage().data_ptr() for tensor in [*victim.parameters(), *victim.buffers()]}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        _step(victim, count)
    return sum(kept.values())
