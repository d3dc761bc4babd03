"""Batches of a run, read here and attacked by its workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from vitattack.core.forked import spread
from vitattack.data import DataSet
from vitattack.evaluation.batch_runner import BatchRunner, Outcome, read_batch
from vitattack.evaluation.workers import Workers
from vitattack.records.batch import BatchNotes
from vitattack.records.record import SampleRecord

Numbered = Iterable[tuple[int, tuple[int, ...]]]  # batches of rows with their numbers


class Images(NamedTuple):
    """The images of a batch, and how many lay outside [0,1] by rounding."""

    number: int
    rows: tuple[int, ...]
    x: Tensor
    y: Tensor
    nudged: int


class _Made(NamedTuple):
    """What a worker makes of a batch; candidates only where they are kept, since they are large."""

    records: list[SampleRecord]
    x_adv: Tensor | None
    notes: BatchNotes
    seconds: float


@dataclass(frozen=True)
class Attacked:
    """A batch that was attacked."""

    number: int
    x: Tensor
    records: list[SampleRecord]
    candidates: Tensor | None
    notes: BatchNotes
    seconds: float

    @property
    def outcomes(self) -> list[Outcome]:
        """Records with their candidates, if these are kept."""
        return list(map(Outcome, self.records, self.candidates)) if self.candidates is not None else []


def attacked_batches(
    runner: BatchRunner,
    data: DataSet,
    batches: Numbered,
    workers: Workers,
    look: Callable[[Images], None] = lambda images: None,
    *,
    keep: bool = False,
) -> Generator[Attacked]:
    """Yield the batches as they end, in the order given if there is one process.

    `look` sees the images of each before they are attacked; with `keep` their candidates come along.
    """
    device = runner.victim.mean.device

    def attacked(images: Images) -> _Made:
        began = time.perf_counter()
        look(images)
        outcomes = runner.outcomes(images.rows, images.x, images.y)
        x_adv = torch.stack([outcome.x_adv for outcome in outcomes]) if keep else None
        records = [outcome.record for outcome in outcomes]
        return _Made(records, x_adv, runner.take_notes(images.nudged), time.perf_counter() - began)

    # Read here, since copies of a process share the positions of its open files.
    read = (Images(number, rows, *read_batch(data, rows, runner.victim, device)) for number, rows in batches)
    for images, made in spread(attacked, read, workers.processes, workers.threads):
        yield Attacked(images.number, images.x, *made)
