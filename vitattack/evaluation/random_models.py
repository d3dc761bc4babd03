"""Random models under evaluation: recognised before the attack, asked several times, decided by the majority."""

from __future__ import annotations

import torch
from torch import Tensor

from vitattack.attacks import attack_text
from vitattack.attacks.base import Attack, walk_attacks
from vitattack.attacks.expectation import Expectation
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng, seeded
from vitattack.core.runtime import out_of_memory
from vitattack.data import DataSet
from vitattack.models.randomness import STEADY, Variation, variation
from vitattack.models.victim import Victim, frozen
from vitattack.records.draws import DRAWS
from vitattack.records.job import Job
from vitattack.threats.base import parse_threat

BY_BATCH = "answer to an image depends on the other images of its batch"  # words of the doubt
IMAGES = 32  # compared for recognition


def predictions(logits: Tensor) -> Tensor:
    """(B,) predicted classes, -1 for outputs that are not finite."""
    return torch.where(torch.isfinite(logits).all(1), logits.argmax(1), -1)


def drawn_predictions(victim: Victim, x: Tensor, rng: SampleRng, size: int | None = None) -> Tensor:
    """(DRAWS, B) predictions of as many forwards of `size` images, each with a seed of its own that a job repeats."""
    found = []
    with frozen(victim), torch.no_grad():
        for rows in torch.split(torch.arange(len(x), device=x.device), size or len(x)):
            part = []
            for number in range(DRAWS):
                with seeded(rng[rows].child("draw", number)):
                    part.append(predictions(victim(x[rows])))
            found.append(torch.stack(part))
    return torch.cat(found, 1)


def majority(drawn: Tensor, y: Tensor) -> Tensor:
    """(B,) the label where most draws are right, the likeliest other class where most are wrong, else -1."""
    right, wrong = (drawn == y).sum(0), ((drawn != y) & (drawn >= 0)).sum(0)
    others = drawn.masked_fill(drawn == y, -1)
    likeliest = torch.stack([(others == column).sum(0).masked_fill(column < 0, 0) for column in others]).argmax(0)
    wrong_class = others.gather(0, likeliest[None])[0]
    undecided = torch.full_like(y, -1)
    return torch.where(2 * right > len(drawn), y, torch.where(2 * wrong > len(drawn), wrong_class, undecided))


def bits(right: Tensor) -> list[str]:
    """Draws of every sample as a text of 1 for right and 0 for wrong, from a (DRAWS, B) mask."""
    return ["".join("1" if one else "0" for one in column) for column in right.T.tolist()]


def recognised(victim: Victim, images: Tensor, seed: int, batch_size: int) -> Variation:
    """What the victim's answers vary with, from a handful of forwards of images from all over the data set."""
    rng, size = SampleRng(seed, (0,)).child("recognition"), min(batch_size, len(images))
    while size:
        try:
            return variation(victim, images, rng, size)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            size //= 2
    return STEADY  # the first batch will say that not even one image fits


def rows_to_compare(data: DataSet) -> list[int]:
    """Rows spread over the whole data set, since a model may be random on some inputs only."""
    rows = data.alike(data.rows)
    count = min(IMAGES, len(rows))
    return [rows[len(rows) * number // count] for number in range(count)]


def variation_doubts(found: Variation, attack: Attack, job: Job) -> list[str]:
    """The doubt about a model that answers the same images differently, with the next command to run."""
    if found.cause == "chance":
        own = (
            ""
            if found.repeatable
            else "; its noise has a generator of its own, which no seed reaches: numbers will move"
        )
        return [
            f"the model is random: two forwards of the same images differ by up to {found.gap:.2g}; accuracies are "
            f"expectations over {DRAWS} draws, and a candidate fools if most of its draws are wrong{own}"
            f"{averaging_advice(attack, job)}"
        ]
    if found.cause == "batch":
        return [
            f"the model's {BY_BATCH}, by up to {found.gap:.2g} in a logit "
            f"(statistics of the batch?): the numbers are those of batches of {job.batch_size}; next: the same with "
            "--batch-size 1"
        ]
    return []


def averaging_advice(attack: Attack, job: Job) -> str:
    """The next command against a random model, unless the attack averages over its noise already."""
    if any(isinstance(part, Expectation) for part in walk_attacks(attack)):
        return ""
    for text in (f"eot({job.attack})", "eot(apgd)"):
        try:
            attack_text.build(text, parse_threat(job.threat))
        except UsageError:
            continue
        return f"; {job.next_run(text)}"
    return ""
