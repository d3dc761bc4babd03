"""Stores of every schema, kept as they were written by the version of their time, are read and continued.

A version that raises `SCHEMA` adds the store that its predecessor wrote: `python -m tests.records.make_store FILE`.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from vitattack.bench.run.stored_cells import result_in
from vitattack.data import load_data
from vitattack.records.job import Job
from vitattack.records.record import SampleRecord
from vitattack.records.sealed import SCHEMA, load
from vitattack.records.store import Sink
from vitattack.records.stored_result import last_records, read_result

STORES = Path(__file__).parent / "stores"
FINISHED = {  # samples, robust, passes, doubts
    "pgd(steps=2)": (5, 4, 1, 1),
    "auto(steps=1, k=1, long=60)": (12, 8, 2, 0),
    "aas(pgd(steps=1), restarts=1, calibration=4, steps=1)": (2, 1, 1, 1),
}
UNFINISHED = {"fgsm": (0, 1), "pgd(steps=1)": (0, 2)}


@pytest.fixture(params=sorted(STORES.glob("*.tar.gz")), ids=lambda path: path.name.partition(".")[0])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def jobs(store: Path) -> dict[str, Job]:
    found = [json.loads(path.read_text()) for path in store.glob("*/job.json")]
    named = [Job(**{k: v for k, v in each.items() if k not in ("schema", "key", "crc")}) for each in found]
    return {job.attack: job for job in named}


def test_there_is_a_store_of_every_schema() -> None:
    assert [path.name for path in sorted(STORES.iterdir())] == [f"schema-{n}.tar.gz" for n in range(1, SCHEMA + 1)]


def test_finished_jobs_are_read(store: Path) -> None:
    found = {}
    for job in jobs(store).values():
        if (result := read_result(store, job.folder)) is not None:
            content = result_in(store / job.folder)
            assert content is not None and content["robust"] == result.robust.json()
            assert last_records(store / job.folder) == result.records
            passes = len({record.pass_number for record in result.records})
            own = [doubt for doubt in result.doubts if not doubt.startswith("stored with ")]
            found[job.attack] = (result.n, result.robust.correct, passes, len(own))
    assert found == FINISHED


@pytest.mark.parametrize("attack", UNFINISHED)
def test_unfinished_jobs_go_on(store: Path, attack: str) -> None:
    """What is there stays as it was, in the present schema, and so do the costs."""
    job, shard = jobs(store)[attack], UNFINISHED[attack]
    batches = list(load_data(job.data).cut(job.batch_size))
    assert len(batches) == 3
    with Sink(store, job, batches, shard) as sink:
        before, notes, events = list(sink.records), sink.notes, sink.events()
        done = 2 if shard == (0, 1) else len(before) // 2
        assert len(before) == 2 * done > 0 and sum("seconds" in event for event in events) == done
        for rows in sink.todo:
            sink.write([SampleRecord(i, 0, 0, 0, "robust", 0.1, False, False, -1, 5, 4) for i in rows])
    assert (load(store / job.folder / "job.json") or {})["schema"] == SCHEMA
    with Sink(store, job, batches, shard) as sink:
        assert sink.records[: len(before)] == before and not sink.todo
        assert sink.notes == notes and sink.events() == events


def test_a_finished_job_that_is_opened_keeps_its_records_of_all_passes(store: Path) -> None:
    job = jobs(store)["auto(steps=1, k=1, long=60)"]
    before = last_records(store / job.folder)
    (store / job.folder / "result.json").unlink()
    with Sink(store, job, [tuple(range(12))]) as sink:
        assert not sink.todo
        probed = tuple(record.index for record in before if record.pass_number == 2)
        (batch,) = sink.later_pass(2, [probed]).values()
        assert [*batch.records] == [record for record in before if record.pass_number == 2]
