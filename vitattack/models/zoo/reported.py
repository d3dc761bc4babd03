"""The reported numbers of an entry that answer a question."""

from __future__ import annotations

import re

from vitattack.models.zoo.entry import Reported, ZooEntry

ATTACKED = "robust"


def at_budget(reported: Reported, entry: ZooEntry, threat: str) -> bool:
    """Whether a number is of this budget: its protocol says so, or says none and the entry does."""
    there = re.search(rf"\bat {re.escape(threat)}(?![\w./])", reported.protocol)
    return there is not None or (" at " not in reported.protocol and threat == entry.threat)


def lowest_reported(entry: ZooEntry, metric: str, threat: str) -> Reported | None:
    """The lowest number for a metric on the entry's own data; robust ones under this budget."""
    found = [
        each
        for each in entry.reported
        if each.metric == metric
        and not each.protocol.startswith("mean of")  # over other data sets
        and (metric != ATTACKED or at_budget(each, entry, threat))
    ]
    return min(found, key=lambda each: each.value, default=None)
