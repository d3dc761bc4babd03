"""Candidates of a batch: crafted on a source for all of its images, and judged on a target."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from vitattack.attacks.base import Crafted
from vitattack.attacks.black_box.transfer import carried
from vitattack.core.rng import SampleRng
from vitattack.evaluation.batch_runner import BatchRunner, MemoryBackoff
from vitattack.evaluation.judge import clean_answers, judge
from vitattack.models.victim import Victim
from vitattack.records.record import SampleRecord
from vitattack.threats.lp import LpBall


def craft(
    batches: BatchRunner, rows: Sequence[int], x: Tensor, y: Tensor
) -> tuple[list[SampleRecord], Tensor, dict[str, Tensor]]:
    """The white-box records of a batch, candidates for all of its rows, and the crafting evidence kept in the cells.

    Images the source misclassifies are attacked in a call of their own, so that the others are crafted by the very
    computation that `evaluate` does.
    """
    outcomes = batches.outcomes(rows, x, y)
    records = [outcome.record for outcome in outcomes]
    x_adv = torch.stack([outcome.x_adv for outcome in outcomes])
    forwards = [record.forwards for record in records]
    backwards = [record.backwards for record in records]
    right = torch.tensor([record.clean == record.label for record in records], device=x.device)
    wrong = (~right).nonzero().flatten()
    rng = SampleRng(batches.job.seed, tuple(rows))

    def regardless(part: slice) -> list[tuple[Tensor, int, int]]:
        at = wrong[part]
        crafted, spent = batches.crafted(x[at], y[at], rng[at])
        return list(zip(crafted.x_adv, spent["forwards"].tolist(), spent["backwards"].tolist(), strict=True))

    if len(wrong):
        for at, (candidate, one, two) in zip(wrong.tolist(), batches.backoff(regardless, 0, len(wrong)), strict=True):
            x_adv[at] = candidate
            forwards[at] += one
            backwards[at] += two
    fooled = [record.status == "fooled" for record in records]
    evidence = {
        "source_right": right,
        "source_fooled": torch.tensor(fooled, device=x.device),
        "source_forwards": torch.tensor(forwards, device=x.device),
        "source_backwards": torch.tensor(backwards, device=x.device),
    }
    return records, x_adv, evidence


def judged(
    victim: Victim,
    ball: LpBall,
    rows: Sequence[int],
    x: Tensor,
    y: Tensor,
    seen: Tensor,
    x_adv: Tensor,
    evidence: dict[str, Tensor],
    pieces: MemoryBackoff,
    seed: int,
) -> list[SampleRecord]:
    """Records of candidates crafted around `seen`, on a target whose images are `x`."""
    candidates = carried(ball, x, seen, x_adv)
    evidence = {**evidence, "resized": torch.full_like(y, int(seen.shape != x.shape))}

    def work(part: slice) -> list[SampleRecord]:
        rng = SampleRng(seed, tuple(rows[part]))
        clean = clean_answers(victim, x[part], y[part], rng)
        attacked = clean.attacked
        mine = Crafted(candidates[part][attacked], {name: row[part][attacked] for name, row in evidence.items()})
        others = {name: row[part][~attacked] for name, row in evidence.items()}
        nothing = torch.zeros_like(y[part][attacked])
        return judge(victim, ball, rng, x[part], y[part], clean, mine, nothing, nothing, others)

    return pieces(work, 0, len(rows))


def pixels_digest(x: Tensor) -> str:
    return hashlib.sha256(x.cpu().contiguous().numpy().tobytes()).hexdigest()[:16]
