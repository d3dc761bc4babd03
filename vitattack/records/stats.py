"""Statistics of records: intervals, the worst case over attacks, paired tests."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

from vitattack.core.percent import percent, span
from vitattack.records import draws
from vitattack.records.packed import PackedRecords
from vitattack.records.record import SampleRecord, Status

Z95 = 1.959963984540054
STATE = ("index", "status", "fragile")
_state = attrgetter(*STATE)


class Accuracy(NamedTuple):
    """A share of n samples with its 95 % interval, all in [0,1]."""

    accuracy: float
    low: float
    high: float
    correct: int
    n: int

    def json(self) -> dict[str, float | int]:
        return {"accuracy": self.accuracy, "low": self.low, "high": self.high, "correct": self.correct}


def figures(accuracy: Accuracy) -> tuple[str, str, str]:
    """Share, interval and counts, as the columns of a table."""
    return percent(accuracy.accuracy), span(accuracy.low, accuracy.high), f"{accuracy.correct}/{accuracy.n}"


def wilson(correct: int, n: int) -> tuple[float, float]:
    """The Wilson score interval of a share, 95 %."""
    # Closed form: scipy.stats would change last digits in stored files, and takes longer to import than a stored run to print.
    return score_interval(correct / n, n) if n else (0.0, 1.0)


def score_interval(p: float, n: float) -> tuple[float, float]:
    """Wilson's interval of a share p that tells as much as one of n independent samples does, 95 %."""
    if n == 0:
        return 0.0, 1.0
    z2 = Z95 * Z95
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    return max(0.0, centre - half) if p > 0 else 0.0, min(1.0, centre + half) if p < 1 else 1.0


def expected_share(
    rows: Sequence[str], least: Sequence[str] | None = None, most: Sequence[str] | None = None
) -> Accuracy:
    """The expected share of right answers of a random model from the draws of every sample; see `records.draws`.

    The score interval has the sample size that gives the variance of the mean, images and draws included. `least` and
    `most` are the draws if samples that could count either way count against it or for it.
    """
    found = draws.expectation(rows)
    low = score_interval(*(draws.expectation(least) if least is not None else found))[0]
    high = score_interval(*(draws.expectation(most) if most is not None else found))[1]
    return Accuracy(found.mean, low, high, round(found.mean * len(rows)), len(rows))


def share(correct: int, n: int, least: int | None = None, most: int | None = None) -> Accuracy:
    """A share with its interval; `least` and `most` widen it if some samples could count either way."""
    low = wilson(correct if least is None else least, n)[0]
    high = wilson(correct if most is None else most, n)[1]
    return Accuracy(correct / n if n else 0.0, low, high, correct, n)


def differ(one: Accuracy, two: Accuracy) -> bool:
    """Whether two shares of independent samples differ at the 0.1 % level."""
    pooled = (one.correct + two.correct) / max(1, one.n + two.n)
    error = math.sqrt(pooled * (1 - pooled) * (1 / max(1, one.n) + 1 / max(1, two.n)))
    return abs(one.accuracy - two.accuracy) > 3.29 * error


class Gap(NamedTuple):
    """Difference of two shares, with its 95 % interval."""

    difference: float
    low: float
    high: float

    @property
    def inside(self) -> bool:
        """Whether sampling alone explains the difference."""
        return self.low <= 0 <= self.high


def gap(measured: Accuracy, published: float, n: int | None) -> Gap:
    """Newcombe's interval of a difference, from both Wilson intervals; a share without n counts as exact.

    Both samplings count as independent: on the same images the true interval is narrower.
    """
    low, high = (published, published) if n is None else wilson(round(published * n), n)
    low, high = min(low, published), max(high, published)
    difference = measured.accuracy - published
    below = math.hypot(measured.accuracy - measured.low, high - published)
    above = math.hypot(measured.high - measured.accuracy, published - low)
    return Gap(difference, difference - below, difference + above)


def paired_gap(both: int, only_first: int, only_second: int, neither: int) -> Gap:
    """The second share minus the first, of the same samples, with Newcombe's 95 % interval for paired proportions.

    Method 10 of Newcombe (1998), Statistics in Medicine 17: both Wilson intervals, and the correlation of the outcomes,
    corrected for continuity where it is positive.
    """
    n = both + only_first + only_second + neither
    if n == 0:
        return Gap(0.0, -1.0, 1.0)
    one, two = both + only_first, both + only_second
    (low1, high1), (low2, high2) = wilson(one, n), wilson(two, n)
    down1, up1, down2, up2 = one / n - low1, high1 - one / n, two / n - low2, high2 - two / n
    margins = one * (n - one) * two * (n - two)
    together = both * neither - only_first * only_second
    phi = (max(together - n / 2, 0.0) if together > 0 else together) / math.sqrt(margins) if margins else 0.0
    difference = (only_second - only_first) / n
    below = math.sqrt(max(0.0, down2 * down2 - 2 * phi * down2 * up1 + up1 * up1))
    above = math.sqrt(max(0.0, up2 * up2 - 2 * phi * up2 * down1 + down1 * down1))
    return Gap(difference, max(-1.0, difference - below), min(1.0, difference + above))


def paired_gap_of_shares(first: Sequence[float], second: Sequence[float]) -> Gap:
    """The same of random models, where a sample is robust in a share of the draws; the interval is a normal one."""
    n = len(first)
    if n < 2:
        return Gap(sum(second) - sum(first), -1.0, 1.0)
    changes = [b - a for a, b in zip(first, second, strict=True)]
    mean = math.fsum(changes) / n
    half = Z95 * math.sqrt(math.fsum((change - mean) ** 2 for change in changes) / (n * (n - 1)))
    return Gap(mean, max(-1.0, mean - half), min(1.0, mean + half))


def clean_accuracy(records: Sequence[SampleRecord]) -> Accuracy:
    if any(draws.CLEAN in r.evidence for r in records):
        return expected_share([draws.clean_draws(r) for r in records])
    return share(sum(r.clean == r.label for r in records), len(records))


def robust_accuracy(records: Sequence[SampleRecord]) -> Accuracy:
    """Headline: status `robust` over all samples. `low` counts fragile and invalid ones as fooled, `high` as robust.

    Of a random model: the expected share of candidates that it classifies correctly.
    """
    return worst_case([records])


def expected_loss(records: Sequence[SampleRecord]) -> Accuracy:
    """Clean accuracy of a random model minus its robust accuracy, image by image; the interval is a normal one."""
    n = len(records)
    pairs = [(draws.clean_draws(r), _outcome(Verdict.of(r))) for r in records]
    losses = [clean.count("1") / len(clean) - kept.count("1") / len(kept) for clean, kept in pairs]
    mean = math.fsum(losses) / max(1, n)
    half = Z95 * math.sqrt(math.fsum((loss - mean) ** 2 for loss in losses)) / max(1, n)
    return Accuracy(mean, max(0.0, mean - half), min(1.0, mean + half), round(mean * n), n)


def mean_passes(records: Iterable[SampleRecord]) -> tuple[float, float]:
    """Forwards and backwards per attacked sample."""
    attacked = [r for r in records if r.clean == r.label]
    n = max(1, len(attacked))
    return sum(r.forwards for r in attacked) / n, sum(r.backwards for r in attacked) / n


@dataclass(frozen=True, slots=True)
class Verdict:
    """What of a record decides whether its sample is robust; equal ones of a deterministic model are one object."""

    status: Status
    fragile: bool
    draws: str | None = None  # of a random model on the candidate, 1 for right and 0 for wrong

    @classmethod
    def of(cls, record: SampleRecord) -> Verdict:
        drawn = draws.adversarial_draws(record)
        return _verdict(record.status, record.fragile) if drawn is None else cls(record.status, record.fragile, drawn)

    @property
    def robust(self) -> bool:
        return self.status == "robust"


@lru_cache(16)
def _verdict(status: Status, fragile: bool) -> Verdict:
    return Verdict(status, fragile)


Verdicts = Sequence[SampleRecord] | Mapping[int, Verdict]


def worst_case(runs: Sequence[Verdicts]) -> Accuracy:
    """The per-sample union of several attacks on the same samples: robust only where every attack failed."""
    if any(map(_holds_draws, runs)):
        columns = [run if isinstance(run, Mapping) else {r.index: Verdict.of(r) for r in run} for run in runs]
        shared = [i for i in columns[0] if all(i in column for column in columns)]
        return _expected_worst_case([[column[i] for column in columns] for i in shared])
    # Sets of indices rather than verdicts sample by sample: a million records are counted in half a second.
    left: set[int] | None = None
    fallen, loose, lost = set[int](), set[int](), set[int]()
    for run in runs:
        states = [*_states(run)]
        indices = {index for index, _, _ in states}
        left = indices if left is None else left & indices
        fallen |= {index for index, status, _ in states if status != "robust"}
        loose |= {index for index, _, fragile in states if fragile}
        lost |= {index for index, status, _ in states if status not in ("robust", "invalid")}
    left = left or set()
    return share(len(left - fallen), len(left), least=len(left - fallen - loose), most=len(left - lost))


def _states(run: Verdicts) -> Iterable[tuple[int, Status, bool]]:
    """Index, status and fragility of every sample."""
    if isinstance(run, Mapping):
        return ((index, verdict.status, verdict.fragile) for index, verdict in run.items())
    if isinstance(run, PackedRecords):
        return zip(*map(run.column, STATE), strict=True)
    return map(_state, run)


def _holds_draws(run: Verdicts) -> bool:
    """Whether a run is one on a random model."""
    if isinstance(run, Mapping):
        return any(verdict.draws is not None for verdict in run.values())
    if isinstance(run, PackedRecords) and not run.evidence_has("draws"):
        return False
    return any(draws.adversarial_draws(record) is not None for record in run)


def _outcome(verdict: Verdict, fragile: str = "1", invalid: str = "0") -> str:
    """Draws of a sample under attack, where those without a sure verdict count as given."""
    if verdict.status == "invalid":
        return invalid
    if verdict.draws is not None:
        return verdict.draws
    return fragile if verdict.fragile else "1" if verdict.robust else "0"


def _expected_worst_case(states: Sequence[Sequence[Verdict]]) -> Accuracy:
    """The worst case of attacks on a random model, whose samples are robust in a share of the draws."""

    readings = {"found": ("1", "0"), "least": ("0", "0"), "most": ("1", "1")}
    rows = {name: [draws.union([_outcome(v, *how) for v in row]) for row in states] for name, how in readings.items()}
    return expected_share(rows["found"], rows["least"], rows["most"])


class Paired(NamedTuple):
    """McNemar's exact test: of n shared samples, how many only the first and only the second run leaves robust."""

    only_first: int
    only_second: int
    n: int
    p_value: float


def mcnemar(first: Sequence[SampleRecord], second: Sequence[SampleRecord]) -> Paired:
    """Compare two attacks, or two models, on the same samples."""
    one, two = ({index: status == "robust" for index, status, _ in _states(run)} for run in (first, second))
    return paired_test(one, two)


def paired_test(first: Mapping[int, bool], second: Mapping[int, bool]) -> Paired:
    """The same of samples by index, true where robust."""
    pairs = [(robust, second[index]) for index, robust in first.items() if index in second]
    a, b = sum(x and not y for x, y in pairs), sum(y and not x for x, y in pairs)
    discordant = a + b
    # Exact in integers, where scipy.stats.binomtest rounds (by up to 1e-14 of p) and refuses two runs without a difference.
    ways, term = 0, 1  # term runs through the binomial coefficients
    for k in range(min(a, b) + 1):
        ways += term
        term = term * (discordant - k) // (k + 1)
    return Paired(a, b, len(pairs), min(1.0, 2 * ways / 2**discordant))
