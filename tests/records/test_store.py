"""The store after crashes: complete batches survive, and a resumed file equals that of an uninterrupted run."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from vitattack.core.errors import UsageError
from vitattack.records.job import Job
from vitattack.records.record import SampleRecord
from vitattack.records.sealed import SCHEMA
from vitattack.records.store import Sink

JOB = Job("m", "pgd", "linf:8/255", "d", "w", "p")
BATCHES = [(3, 1, 4), (15, 9), (2, 6, 5), (35,)]


def rows(batch: tuple[int, ...]) -> list[SampleRecord]:
    return [SampleRecord(i, 0, 0, 0, "robust", 0.1, False, False, -1, 5, 4, {"stage": 1}) for i in batch]


def write(root: Path, batches: list[tuple[int, ...]], shard: tuple[int, int] = (0, 1)) -> Path:
    with Sink(root, JOB, BATCHES, shard) as sink:
        for batch in batches:
            sink.write(rows(batch))
        sink.merge()
    return root / JOB.folder / "samples.jsonl"


@pytest.mark.parametrize("cut", [1, 40, 200, 700, 1100])
def test_a_torn_file_is_cut_behind_its_last_whole_batch(tmp_path: Path, cut: int) -> None:
    whole = write(tmp_path / "whole", BATCHES).read_bytes()
    path = write(tmp_path / "torn", BATCHES)
    path.write_bytes(whole[:-cut])
    with Sink(tmp_path / "torn", JOB, BATCHES) as sink:
        assert sink.todo == BATCHES[len(BATCHES) - len(sink.todo) :] != []
        for batch in sink.todo:
            sink.write(rows(batch))
    assert path.read_bytes() == whole


@pytest.mark.parametrize("noise", [b'{"index":3', b"\x00\xff\n", b'{"index":99}\n', b"[]\n"])
def test_noise_at_the_end_is_cut_off(tmp_path: Path, noise: bytes) -> None:
    path = write(tmp_path, BATCHES[:2])
    good = path.read_bytes()
    path.write_bytes(good + noise)
    said = pytest.warns(UserWarning, match="is damaged") if noise.endswith(b"\n") else nullcontext()
    with said, Sink(tmp_path, JOB, BATCHES) as sink:
        assert sink.todo == BATCHES[2:]
    assert path.read_bytes() == good


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_shards_merge_to_the_file_of_one_run(tmp_path: Path, count: int) -> None:
    whole = write(tmp_path / "whole", BATCHES).read_bytes()
    root = tmp_path / "parts"
    for number in reversed(range(count)):
        with Sink(root, JOB, BATCHES, (number, count)) as sink:
            for batch in sink.todo:
                sink.write(rows(batch))
            assert sink.merge() is (number == 0)
    assert (root / JOB.folder / "samples.jsonl").read_bytes() == whole


def test_two_writers_of_one_job_are_kept_apart(tmp_path: Path) -> None:
    with Sink(tmp_path, JOB, BATCHES), pytest.raises(UsageError, match="another process is writing"):
        Sink(tmp_path, JOB, BATCHES)
    with Sink(tmp_path, JOB, BATCHES):
        pass  # free again


def test_the_key_knows_what_changes_records_and_nothing_else() -> None:
    assert Job("m", "pgd", "linf:8/255", "d", "w", "p").key == JOB.key
    changes = {
        "attack": "gama",
        "weights": "x",
        "pixels": "x",
        "seed": 1,
        "batch_size": 8,
        "threads": 2,
        "device": "cuda",
    }
    keys = {Job(**{**JOB.__dict__, name: value}).key for name, value in changes.items()}
    assert len(keys | {JOB.key}) == len(changes) + 1


def test_job_json_says_what_the_folder_is(tmp_path: Path) -> None:
    write(tmp_path, [])
    content = json.loads((tmp_path / JOB.folder / "job.json").read_text())
    assert content["key"] == JOB.key and content["attack"] == "pgd" and content["schema"] == SCHEMA


@pytest.mark.parametrize("out", ["file", "file/below", "/proc/nowhere"])
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, out: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write .*: give another folder with --out"):
        Sink(tmp_path / out, JOB, BATCHES)
