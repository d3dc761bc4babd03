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
    "eval": 40,
    "auto": 30,
    "auto escalated": 15,
    "aas": 30,
    "scales": 5,
    "shards": 30,
    "zoo": 10,
    "transfer": 25,
    "bench": 25,
    "bench --jobs 2": 6,
    "bench ray": 4,
    "train": 30,
    "pull": 15,
}
DAMAGES = {
    "eval": 120,
    "auto": 70,
    "aas": 80,
    "shards": 60,
    "transfer": 40,
    "bench": 60,
    "train": 80,
    "controls": 10,
    "pull": 25,
    "pull pinned": 20,
    "given scales": 15,
    "plan": 15,
    "zoo file": 15,
}
FOLDERS = {
    "full disk": 24,
    "file too large": 18,
    "read-only": 12,
    "vanishing": 24,
    "two, locks": 20,
    "two, no locks": 20,
    "two nodes": 20,
    "shards at once": 15,
    "overwritten": 30,
    "clock": 18,
    "data": 24,
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
