"""A small part of the fault campaign; `python benchmarks/faults.py` runs all of it."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from .campaign import missing, open_bench, trial
from .damages import CHANGES
from .folders import Skipped
from .kills import Bench
from .outcome import doubled
from .tally import Verdict, table

SEED = 1
MORE = (
    ("kill eval", 1),
    ("kill auto", 1),
    *(("damage eval", number) for number in range(4, 8)),
    ("damage train", 1),
)
TRIALS = (
    ("kill eval", 0),
    ("kill auto", 0),
    ("kill train", 0),
    ("kill pull", 0),
    *(("damage eval", number) for number in range(4)),
    ("damage train", 0),
    ("full disk", 0),
    ("file too large", 0),
    ("vanishing", 0),
    ("two, no locks", 0),
    ("two nodes", 0),
    ("clock", 0),
    ("data", 0),
    *(pytest.param(*each, marks=pytest.mark.slow) for each in MORE),
)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with open_bench(tmp_path_factory.mktemp("faults")) as opened:
        yield opened


@pytest.mark.parametrize(("kind", "number"), TRIALS)
def test_a_fault_changes_no_number(bench: Bench, kind: str, number: int) -> None:
    try:
        verdict = trial(bench, kind, number, SEED)
    except Skipped as reason:
        pytest.skip(str(reason))
    assert not verdict.failed, "\n".join(verdict.notes)


def test_every_change_is_one_and_a_function_of_its_seed() -> None:
    content = b'{"index":1,"status":"robust","size":0.25}\n{"index":2,"status":"fooled","size":0.5}\n' * 40
    for change in CHANGES:
        found = [change(content, random.Random(seed)) for seed in range(8)]
        assert any(each != content for each in found), change.__name__
        assert found == [change(content, random.Random(seed)) for seed in range(8)], change.__name__


def test_what_fails_is_counted() -> None:
    records = b'{"index":1,"pass_number":1}\n{"index":2,"pass_number":1}\n{"index":1,"pass_number":2}\n'
    assert doubled({"a": records}) == 0 and doubled({"a": records, "b": records * 2}) == 3
    failures = [Verdict(**{name: 1}) for name in ("lost", "doubled", "wrong", "silent", "unclean")]
    assert all(verdict.failed for verdict in failures) and not Verdict(injected=1, survived=1, refused=1).failed
    shown = table(
        [("kill eval", Verdict(injected=2, survived=2)), ("clock", Verdict(injected=1, wrong=1))]
    ).splitlines()
    assert [line.split() for line in shown[1:]] == [
        ["clock", "1", "1", "0", "0", "0", "0", "1", "0", "0"],
        ["kill", "eval", "1", "2", "2", "0", "0", "0", "0", "0", "0"],
        ["all", "2", "3", "2", "0", "0", "0", "1", "0", "0"],
    ]
    assert missing("kill eval") is None
