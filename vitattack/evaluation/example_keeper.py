"""Keeping of candidates: beside the records of their job, before the records themselves, so that no kill separates them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from vitattack.core.progress import current_listener, in_stage
from vitattack.evaluation.batch_runner import Outcome
from vitattack.records.batch import Batch
from vitattack.records.job import Job
from vitattack.records.record import SampleRecord
from vitattack.records.saved_examples import holds_examples, write_examples

# The images of some rows, and what an attack makes of them.
Craft = Callable[[tuple[int, ...]], tuple[Tensor, list[Outcome]]]


class ExampleKeeper:
    """The examples of one job; where they are not `wanted`, nothing is written and nothing lacks."""

    def __init__(self, run: Path, job: Job, *, wanted: bool) -> None:
        self._run, self.wanted = run, wanted
        self._about = {"job": job.key, "model": job.model, "attack": job.attack, "threat": job.threat, "data": job.data}

    def keep(self, batch: Batch, x: Tensor, outcomes: Sequence[Outcome]) -> None:
        """Write the examples of a batch that is about to be stored."""
        if self.wanted:
            x_adv = torch.stack([outcome.x_adv for outcome in outcomes])
            arrays = (images.detach().float().cpu().numpy() for images in (x, x_adv))
            write_examples(self._run, batch, self._about, *arrays)

    def lacks(self, batch: Batch) -> bool:
        """Whether a stored batch is without its examples."""
        return self.wanted and not holds_examples(self._run, batch)

    def complete(
        self,
        batches: Sequence[Batch],
        craft: Craft,
        stored_form: Callable[[SampleRecord], SampleRecord] = lambda record: record,
    ) -> None:
        """Craft once more what lacks of stored batches, and keep it if it has the very records that are stored."""
        lacking = [batch for batch in batches if self.lacks(batch)]
        strange = 0
        for batch in in_stage("crafting stored examples again", lacking):
            x, outcomes = craft(batch.rows)
            if tuple(stored_form(outcome.record) for outcome in outcomes) == batch.records:
                self.keep(batch, x, outcomes)
            else:
                strange += 1
        if strange:
            current_listener().warn(
                f"{strange} of {len(lacking)} batches of {self._run} were not crafted again as they are stored: "
                "their examples are missing; run with --fresh to make records and examples together"
            )
