"""Records as columns give back the same records, and the same numbers, as the objects they were made of."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import tiny_vit, toy_pictures
from vitattack import evaluate
from vitattack.records import stats
from vitattack.records.packed import PackedRecords
from vitattack.records.record import STATUSES, SampleRecord

WHOLE = (0, 1, 127, 128, 32767, 32768, 2**31, 2**63 - 1, 2**63, 10**30)
PLAIN = (*WHOLE, -1, 0.0, -0.0, 1.0, inf, nan, True, False, "", "a", "caf\u00e9")


def anything(luck: random.Random) -> SampleRecord:
    """A record of values that are hard to keep apart, or to keep at all."""
    whole = [luck.choice(WHOLE) for _ in range(6)]
    keys = luck.sample(["margin", "stage", "seen"], luck.randrange(4))
    return SampleRecord(
        *whole[:3],
        luck.randint(-1, 9),
        luck.choice(STATUSES),
        luck.choice([0.0, -1.0, luck.random()]),
        luck.random() < 0.5,
        luck.random() < 0.5,
        *whole[3:],
        {key: luck.choice(PLAIN) for key in keys},
        luck.randint(1, 3),
    )


def made(index: int, luck: random.Random) -> SampleRecord:
    status = luck.choice(STATUSES)
    evidence: dict[str, Any] = {
        "margin": luck.gauss(0, 1),
        "zero_grad": luck.random() < 0.1,
        "stage": luck.choice("abc"),
    }
    fragile = status == "robust" and luck.random() < 0.1
    return SampleRecord(index, index % 10, 3, 4, status, luck.random(), fragile, False, 7, 30, 10, evidence)


@pytest.mark.parametrize("count", [0, 1, 2, 7, 400])
@pytest.mark.parametrize("seed", range(20))
def test_records_come_back_as_they_were(seed: int, count: int) -> None:
    luck = random.Random(seed)
    records = [anything(luck) for _ in range(count)]
    packed = PackedRecords(records)
    assert len(packed) == len(records)
    for found in ([*packed], [packed[at] for at in range(len(packed))], packed[:], packed[::-1][::-1]):
        assert [repr(record) for record in found] == [
            repr(record) for record in records
        ]  # types, -0.0 and nan included
    assert [record.line() for record in packed] == [record.line() for record in records]
    assert packed.evidence_has("stage") == any("stage" in record.evidence for record in records)


def test_a_list_equals_its_packed_form_and_no_other() -> None:
    records = [made(index, random.Random(index)) for index in range(20)]
    packed = PackedRecords(records)
    assert packed == records and records == packed and packed == PackedRecords(records)
    assert packed != records[:-1] and packed != [*records[:-1], records[0]] and packed != "text"
    assert packed[-1] == records[-1] and packed[3:5] == records[3:5] and records[4] in packed
    assert "20 records" in repr(packed) and repr(PackedRecords([])) == "<0 records>"
    with pytest.raises(IndexError):
        packed[20]


@pytest.mark.parametrize("evidence", [{"a": True}, {"a": 1}, {"a": 1.0}, {"a": "1"}, {}, {"a": nan, "b": -inf}])
def test_values_that_are_equal_keep_their_types(evidence: dict[str, Any]) -> None:
    kinds = [{"a": True}, {"a": 1}, {"a": 1.0}, evidence]
    records = [replace(made(n, random.Random(n)), evidence=each) for n, each in enumerate(kinds)]
    assert [repr(each.evidence) for each in PackedRecords(records)] == [repr(each) for each in kinds]


def test_statistics_of_columns_are_those_of_objects() -> None:
    luck = random.Random(0)
    runs = [[made(index, luck) for index in range(200)] for _ in range(3)]
    runs[2] = runs[2][:150]
    packed = [PackedRecords(run) for run in runs]
    verdicts = [{record.index: stats.Verdict.of(record) for record in run} for run in runs]
    assert stats.worst_case(runs) == stats.worst_case(packed) == stats.worst_case(verdicts)
    assert stats.worst_case([runs[0], packed[1], verdicts[2]]) == stats.worst_case(runs)
    assert stats.mcnemar(runs[0], runs[2]) == stats.mcnemar(packed[0], packed[2])
    assert stats.clean_accuracy(runs[0]) == stats.clean_accuracy(packed[0])
    drawn = [replace(r, evidence={"draws": 2, "clean_right": "11", "right": "10"}) for r in runs[0]]
    assert stats.worst_case([drawn]) == stats.worst_case([PackedRecords(drawn)])


def test_an_evaluation_of_many_attacks_holds_little_of_each(tmp_path: Path) -> None:
    x = toy_pictures(4)
    found = evaluate(tiny_vit(), ["fgsm", "pgd(steps=2)"], data=(x, x[:, 0, 0, 0].long()), out=tmp_path, device="cpu")
    again = evaluate(tiny_vit(), ["fgsm", "pgd(steps=2)"], data=(x, x[:, 0, 0, 0].long()), out=tmp_path, device="cpu")
    assert all(isinstance(each.records, PackedRecords) for each in (*found.results, *again.results))
    assert found.json() == again.json()
    records = [SampleRecord.parse(made(index, random.Random(index)).line()) for index in range(4000)]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    kept = PackedRecords(records)
    per_record = (tracemalloc.get_traced_memory()[0] - before) / len(kept)
    tracemalloc.stop()
    assert per_record < 64
