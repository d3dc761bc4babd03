"""Means over corruptions: accuracies over 75 and 95 sets, and errors relative to AlexNet's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from vitattack.analyses.intervals import Estimate, mean_of
from vitattack.data.labels.other_sets import CORRUPTIONS, EXTRA_CORRUPTIONS
from vitattack.records.stats import score_interval

SEVERITIES = (1, 2, 3, 4, 5)
GROUPS = {
    "noise": CORRUPTIONS[:3],
    "blur": CORRUPTIONS[3:7],
    "weather": CORRUPTIONS[7:11],
    "digital": CORRUPTIONS[11:],
    "extra": EXTRA_CORRUPTIONS,
}
# Errors of AlexNet on ImageNet-C, means over the severities, in the order of CORRUPTIONS (Hendrycks & Dietterich 2019).
_ALEXNET = (
    *(0.886428, 0.894468, 0.922640, 0.819880, 0.826268, 0.785948, 0.798360, 0.866816, 0.826572, 0.819324),
    *(0.564592, 0.853204, 0.646056, 0.717840, 0.606500),
)
ALEXNET = dict(zip(CORRUPTIONS, _ALEXNET, strict=True))

Right = Mapping[tuple[str, int], np.ndarray]  # by kind and severity, whether each image is classified correctly


def mean_accuracy(right: Right, kinds: Sequence[str], severities: Sequence[int] = SEVERITIES) -> Estimate | None:
    """The mean over all these sets, with an interval over images; None unless all are there."""
    wanted = [(kind, severity) for kind in kinds for severity in severities]
    if not wanted or any(each not in right for each in wanted):
        return None
    return share_of_images(sum(right[each].astype(np.float64) for each in wanted) / len(wanted))


def corruption_error(right: Right) -> Estimate | None:
    """mCE as a share: the mean over the 15 kinds of the error over AlexNet's; None unless all 75 sets are there."""
    if mean_accuracy(right, CORRUPTIONS) is None:
        return None
    relative = [
        sum(1 - right[(kind, severity)].astype(np.float64) for severity in SEVERITIES) / (len(SEVERITIES) * error)
        for kind, error in ALEXNET.items()
    ]
    return mean_of(np.asarray(sum(relative) / len(relative)).tolist())


def share_of_images(shares: object) -> Estimate:
    """The mean of a share in [0,1] of each image: an image counts once, under however many corruptions it is seen.

    Wilson's interval of as many independent images as would give the variance that the mean has.
    """
    values = np.asarray(shares, dtype=np.float64)
    mean = float(values.mean())
    variance = float(values.var(ddof=1)) / len(values) if len(values) > 1 else 0.0
    low, high = score_interval(mean, mean * (1 - mean) / variance if variance else len(values))
    return Estimate(mean, low, high)
