"""Kinds of trials, each a pure function of the seed, its kind and its number."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

from tests.models.weights.hosts import host

from .damages import damage
from .folders import TRIALS, Skipped
from .kills import Bench, kill
from .launcher import Processes, Zygote
from .tally import Verdict
from .workshop import CASES, PULLED, Case, Workshop

# How many trials a whole campaign makes of each kind.
KILLS = {
    "eval": 30,
    "auto": 25,
    "auto escalated": 12,
    "aas": 25,
    "scales": 5,
    "shards": 22,
    "zoo": 8,
    "transfer": 18,
    "bench": 18,
    "bench --jobs 2": 4,
    "bench ray": 3,
    "train": 24,
    "pull": 12,
}
DAMAGES = {
    "eval": 115,
    "auto": 65,
    "aas": 75,
    "shards": 50,
    "transfer": 35,
    "bench": 55,
    "train": 75,
    "controls": 10,
    "pull": 25,
    "pull pinned": 15,
    "given scales": 12,
    "plan": 12,
    "zoo file": 12,
}
FOLDERS = {
    "full disk": 12,
    "file too large": 10,
    "read-only": 8,
    "vanishing": 14,
    "two, locks": 12,
    "two, no locks": 12,
    "two nodes": 12,
    "shards at once": 12,
    "overwritten": 20,
    "clock": 10,
    "data": 14,
}
COUNTS = {
    **{f"kill {name}": count for name, count in KILLS.items()},
    **{f"damage {name}": count for name, count in DAMAGES.items()},
    **FOLDERS,
}


def missing(kind: str) -> str | None:
    """The package that a kind of trials needs and this machine lacks."""
    case = CASES.get(kind.partition(" ")[2])
    needs = case.needs if case else None
    return needs if needs not in (None, "host") and find_spec(needs) is None else None


@contextmanager
def open_bench(root: Path) -> Iterator[Bench]:
    """A furnished workshop in a folder, with its launchers and the host of its weights."""
    with ExitStack() as stack:
        server = stack.enter_context(host())
        workshop = Workshop(root, server.url)
        workshop.furnish()
        server.files[PULLED] = workshop.weights
        zygote = Zygote(root)
        stack.callback(zygote.close)
        yield Bench(workshop, zygote, Processes(root))


def trial(bench: Bench, kind: str, number: int, seed: int) -> Verdict:
    """One trial; raises Skipped where this machine cannot bring the fault about."""
    luck = random.Random(f"{seed}/{kind}/{number}")
    name = f"trial-{kind}-{number}".replace(" ", "-").replace(",", "")
    what, _, rest = kind.partition(" ")
    if kind in TRIALS:
        attempt, cases = TRIALS[kind]
        return attempt(bench, CASES[cases[number % len(cases)]], name, luck)
    case: Case = CASES[rest]
    if (package := missing(kind)) is not None:
        raise Skipped(f"{package} is not installed")
    return kill(bench, case, name, luck) if what == "kill" else damage(bench, case, name, luck)
