"""The judge: a sample counts as fooled if the plain fp32 victim errs on its candidate twice, inside the budget.

A random victim has to err in most of its draws instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from vitattack.attacks.base import Crafted
from vitattack.core.rng import SampleRng, seeded
from vitattack.evaluation.random_models import bits, drawn_predictions, majority, predictions
from vitattack.models.randomness import differing
from vitattack.models.victim import Victim, frozen
from vitattack.records.draws import DRAWS
from vitattack.records.record import SampleRecord, Status
from vitattack.threats.base import Threat

Evidence = dict[str, int | float | str]

# Evidence that has a column of its own in a record, or goes into other columns.
COLUMNS = {"fooled", "first_fooled", "forwards", "backwards"}


class CleanAnswers(NamedTuple):
    """Predictions on clean images, and which of them are attacked: of a random victim, all that any draw gets right."""

    predictions: Tensor  # (B,), -1 for outputs that are not finite
    attacked: Tensor  # (B,)
    forwards: int = 1
    right: Tensor | None = None  # (DRAWS, B), of a random victim


class Verdicts(NamedTuple):
    """Outcome of every candidate; `fragile` successes were not reproduced, `drawn` ones were decided by draws."""

    prediction: Tensor  # (B,) on the candidate, -1 if there is none
    fooled: Tensor
    fragile: Tensor
    forwards: Tensor
    drawn: Tensor
    right: Tensor  # (DRAWS, B), where drawn


def clean_answers(victim: Victim, x: Tensor, y: Tensor, rng: SampleRng, size: int | None = None) -> CleanAnswers:
    """Predictions on clean images; those of a random victim are the majority of its draws, made `size` images at a time."""
    if victim.is_random:
        drawn = drawn_predictions(victim, x, rng.child("clean"), size)
        return CleanAnswers(majority(drawn, y), (drawn == y).any(0), DRAWS, drawn == y)
    with frozen(victim), torch.no_grad(), seeded(rng.child("clean")):
        found = predictions(victim(x))
    return CleanAnswers(found, found == y)


def judge(
    victim: Victim,
    threat: Threat,
    rng: SampleRng,
    x: Tensor,
    y: Tensor,
    clean: CleanAnswers,
    crafted: Crafted,
    forwards: Tensor,
    backwards: Tensor,
    others: Mapping[str, Tensor] | None = None,
) -> list[SampleRecord]:
    """Records of one batch. `crafted` holds candidates for the attacked samples only, in order; costs likewise.

    A success counts if two forwards agree on it, the second at another batch size. One that is not reproduced is `fragile`:
    the sample counts as robust, and the interval of the result covers both readings. Where forwards of one batch differ
    among themselves, the model is random, and most of `DRAWS` draws have to be wrong. Candidates outside the budget are
    discarded before their prediction is computed. `others` is evidence on the samples that were not attacked.
    """
    rows, predicted, attacked = rng.index, clean.predictions, clean.attacked
    allowed = threat.allows(x[attacked], crafted.x_adv, crafted.evidence)
    with frozen(victim), torch.no_grad():
        if victim.is_random:
            found = _over_draws(victim, crafted.x_adv, y[attacked], allowed, rng)
        else:
            claimed = crafted.evidence.get("fooled", torch.zeros_like(allowed)) & allowed
            found = _twice(victim, crafted.x_adv, y[attacked], allowed, claimed, rng)
    clean_bits = bits(clean.right) if clean.right is not None else None
    adversarial_bits = bits(found.right)

    status: list[Status] = ["invalid" if c < 0 else "clean_wrong" for c in predicted.tolist()]
    records = []
    position = aside = 0
    others = others or {}
    sizes = threat.size(x[attacked], crafted.x_adv).tolist()
    for i, row in enumerate(rows):
        drawn_clean: Evidence = {"draws": DRAWS, "clean_right": clean_bits[i]} if clean_bits else {}
        if not bool(attacked[i]):
            spent_aside = [int(others[name][aside]) if name in others else 0 for name in ("forwards", "backwards")]
            records.append(
                SampleRecord(
                    index=row,
                    label=int(y[i]),
                    clean=int(predicted[i]),
                    adversarial=-1,
                    status=status[i],
                    size=0.0,
                    fragile=False,
                    violation=False,
                    first_fooled=-1,
                    forwards=clean.forwards + spent_aside[0],
                    backwards=spent_aside[1],
                    evidence=_evidence(others, aside) | drawn_clean,
                )
            )
            aside += 1
            continue
        k = position
        position += 1
        valid = bool(allowed[k]) and int(found.prediction[k]) >= 0
        outcome: Status = "fooled" if bool(found.fooled[k]) else "robust" if valid else "invalid"
        if int(predicted[i]) != int(y[i]):
            outcome = status[i]  # some draws are right, most are wrong already
        drawn: Evidence = {"draws": DRAWS, "right": adversarial_bits[k]} if bool(found.drawn[k]) else {}
        size = sizes[k] if sizes[k] == sizes[k] and sizes[k] != float("inf") else -1.0
        records.append(
            SampleRecord(
                index=row,
                label=int(y[i]),
                clean=int(predicted[i]),
                adversarial=int(found.prediction[k]),
                status=outcome,
                size=round(size, 8),
                fragile=bool(found.fragile[k]),
                violation=not bool(allowed[k]),
                first_fooled=int(crafted.evidence["first_fooled"][k]) if "first_fooled" in crafted.evidence else -1,
                forwards=clean.forwards + int(forwards[k]) + int(found.forwards[k]),
                backwards=int(backwards[k]),
                evidence=_evidence(crafted.evidence, k) | drawn_clean | drawn,
            )
        )
    return records


def _evidence(rows: Mapping[str, Tensor], at: int) -> Evidence:
    """Evidence of one sample as JSON takes it: a distance that is infinite is written as -1."""
    told = {name: row[at].item() for name, row in sorted(rows.items()) if name not in COLUMNS}
    return {name: -1.0 if value == math.inf else value for name, value in told.items()}


def _twice(victim: Victim, x_adv: Tensor, y: Tensor, allowed: Tensor, claimed: Tensor, rng: SampleRng) -> Verdicts:
    """Verdicts of one forward, and of another at half the batch size for what it or the attack calls a success."""
    first, second = torch.full((2, len(y)), -1, dtype=torch.long, device=y.device)
    spent, drawn = torch.zeros_like(first), torch.zeros_like(allowed)
    right = torch.zeros((DRAWS, len(y)), dtype=torch.bool, device=y.device)
    success = doubtful = drawn
    if bool(allowed.any()):
        batch = int(allowed.sum())
        with seeded(rng.child("verdict")):
            logits = victim(x_adv[allowed])
        first[allowed] = predictions(logits)
        spent += allowed.long()
        success = (first >= 0) & (first != y)
        doubtful = success | (claimed & (first >= 0))
        if bool(doubtful.any()):
            with seeded(rng.child("again")):
                again = _again(victim, x_adv[doubtful], batch)
            second[doubtful] = predictions(again)
            spent += doubtful.long() * (2 if batch == 1 else 1)  # one image is judged as a pair, since it has no halves
            strange = doubtful & ~success
            strange[doubtful] |= (second[doubtful] != first[doubtful]) | differing(again, logits[doubtful[allowed]])
            drawn = _random_rows(victim, x_adv, allowed, strange, rng)
    confirmed = success & (second >= 0) & (second != y)
    found = Verdicts(first, confirmed, doubtful & ~confirmed, spent, drawn, right)
    if not bool(drawn.any()):
        return found
    by_draws = _over_draws(victim, x_adv, y, drawn, rng)
    return Verdicts(
        torch.where(drawn, by_draws.prediction, first),
        torch.where(drawn, by_draws.fooled, confirmed),
        found.fragile & ~drawn,
        spent + by_draws.forwards,
        drawn,
        by_draws.right,
    )


def _over_draws(victim: Victim, x_adv: Tensor, y: Tensor, asked: Tensor, rng: SampleRng) -> Verdicts:
    """Verdicts of the majority of draws, on the candidates that are asked about."""
    prediction, nothing = torch.full_like(y, -1), torch.zeros_like(asked)
    right = torch.zeros((DRAWS, len(y)), dtype=torch.bool, device=y.device)
    if bool(asked.any()):
        drawn = drawn_predictions(victim, x_adv[asked], rng.child("verdict"))
        prediction[asked] = majority(drawn, y[asked])
        right[:, asked] = drawn == y[asked]
    fooled = (prediction >= 0) & (prediction != y)
    return Verdicts(prediction, fooled, nothing, DRAWS * asked.long(), asked, right)


def _random_rows(victim: Victim, x_adv: Tensor, allowed: Tensor, strange: Tensor, rng: SampleRng) -> Tensor:
    """Rows among `strange` that two forwards of the very same batch answer differently: no rounding does that.

    These forwards are no part of the record: deterministic models have none to explain, random ones have their draws.
    """
    found = torch.zeros_like(strange)
    if bool(strange.any()):
        answers = []
        for number in range(2):
            with seeded(rng.child("same", number)):
                answers.append(victim(x_adv[allowed]))
        found[allowed] = differing(*answers)
    return found & strange


def _again(victim: Victim, x_adv: Tensor, batch: int) -> Tensor:
    """Logits at another batch size than the first forward's: half of it, or two for a single image."""
    if batch == 1:
        pair: Tensor = victim(torch.cat([x_adv, x_adv]))
        return pair[:1]
    return torch.cat([victim(part) for part in torch.split(x_adv, max(1, batch // 2))])
