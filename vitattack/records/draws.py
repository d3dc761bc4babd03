"""Accuracies of random models: expectations over several answers to every image, with intervals that hold the draws.

A record of a random model holds its draws as texts of 1 for right and 0 for wrong: evidence `clean_right` for the image,
`right` for the candidate, and their number `draws`. A sample without them counts as one draw that is always the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, variance
from typing import NamedTuple

from vitattack.records.record import SampleRecord

CLEAN, ADVERSARIAL = "clean_right", "right"
DRAWS = 11  # answers to an image and to its candidate; an odd number has a majority


class Expectation(NamedTuple):
    """A mean over images and draws, and the number of images of a deterministic model that would tell as much."""

    mean: float
    size: float


def clean_draws(record: SampleRecord) -> str:
    """Draws on the clean image."""
    return str(record.evidence.get(CLEAN, "1" if record.clean == record.label else "0"))


def adversarial_draws(record: SampleRecord) -> str | None:
    """Draws on the candidate, or on the image of a sample that was not attacked; None if it was decided otherwise."""
    if "draws" not in record.evidence:
        return None
    if ADVERSARIAL in record.evidence:
        return str(record.evidence[ADVERSARIAL])
    return "0" if record.violation else str(record.evidence[CLEAN])


def number_of_draws(records: Sequence[SampleRecord]) -> int | None:
    """Draws per sample of a random model, None for a deterministic one."""
    return max((int(record.evidence["draws"]) for record in records if "draws" in record.evidence), default=None)


def expectation(draws: Sequence[str]) -> Expectation:
    """The mean over images of the share of right draws.

    Its variance has two parts. The spread of the shares over images holds the choice of the images and all noise that is
    independent between them. Noise that images have in common, such as one crop for a whole batch, shows in how much the
    accuracy differs from draw to draw beyond what independent noise explains.
    """
    n, k = len(draws), max(map(len, draws), default=1)
    if n == 0:
        return Expectation(0.0, 0.0)
    shares = [row.count("1") / len(row) for row in draws]
    mean = math.fsum(shares) / n
    if mean in (0.0, 1.0):
        return Expectation(mean, n)
    spread = math.fsum((share - mean) ** 2 for share in shares) / n**2
    if k > 1:
        by_draw = [fmean(row[number % len(row)] == "1" for row in draws) for number in range(k)]
        alone = math.fsum(s * (1 - s) / (len(row) - 1) for s, row in zip(shares, draws, strict=True) if len(row) > 1)
        spread += max(0.0, variance(by_draw) / k - alone / n**2)
    most = n * k  # as many independent answers
    return Expectation(mean, min(mean * (1 - mean) / spread, most) if spread else most)


def union(attacks: Sequence[str]) -> str:
    """Draws of one sample under the attack that is worst for it.

    That attack is chosen by half of the draws and counted on the other half, since the lowest of several noisy shares
    would count their noise as success.
    """
    if len(attacks) == 1:
        return attacks[0]
    k = max(map(len, attacks))
    long = [row * (k // len(row)) if k % len(row) == 0 else row for row in attacks]

    def chosen(parity: int) -> str:
        return min(long, key=lambda row: fmean(bit == "1" for bit in row[parity::2] or row))

    by_even, by_odd = chosen(0), chosen(1)
    return "".join((by_odd if number % 2 == 0 else by_even)[number] for number in range(k))
