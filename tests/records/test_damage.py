"""Damage to record files: every flipped bit is harmless or noticed, and whole batches around it are kept."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from vitattack.core.errors import UsageError, VitattackError
from vitattack.records.batch import Batch, BatchNotes
from vitattack.records.job import Job
from vitattack.records.record import SampleRecord
from vitattack.records.scan import scan
from vitattack.records.sealed import Damaged, load, move_aside, opened_line, sealed_line, sealed_text
from vitattack.records.store import Sink

JOB = Job("m", "pgd", "linf:8/255", "d", "w", "p")
BATCHES = [(3, 1, 4), (15, 9), (2, 6, 5), (35,)]
NOTES = {1: BatchNotes(("the model is random",), nudged=2)}


def rows(batch: Sequence[int]) -> list[SampleRecord]:
    return [SampleRecord(i, 0, 0, 0, "robust", 0.1, False, False, -1, 5, 4, {"stage": 1}) for i in batch]


def write(root: Path, shard: tuple[int, int] = (0, 1)) -> Path:
    """Whatever is missing of a run; returns its record file."""
    with Sink(root, JOB, BATCHES, shard) as sink:
        for batch in sink.todo:
            sink.write(rows(batch), NOTES.get(BATCHES.index(batch), BatchNotes()))
            sink.note({"n": len(batch), "seconds": 1.0})
        if sink.merge():
            sink.confirm(sink.first_pass)
    return root / JOB.folder / "samples.jsonl"


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_no_flipped_bit_of_a_record_file_changes_a_record_unnoticed(tmp_path: Path) -> None:
    """Every third bit of a file: what is read is part of what was written, and silently lost is at most the last batch."""
    path = write(tmp_path)
    whole = path.read_bytes()
    written = scan(path, whole).batches
    for bit in range(0, 8 * len(whole), 3):
        found = scan(path, flipped(whole, bit))
        assert set(map(repr, found.batches)) <= set(map(repr, written)), bit
        assert len(found.batches) >= len(BATCHES) - 2, bit
        assert found.damage or found.batches in (written, written[:-1]), bit


def test_one_damaged_batch_is_run_again_and_the_others_are_kept(tmp_path: Path) -> None:
    path = write(tmp_path)
    whole = path.read_bytes()
    for bit in range(0, 8 * len(whole), 1499):
        path.write_bytes(flipped(whole, bit))
        with warnings.catch_warnings(record=True, action="always") as said, Sink(tmp_path, JOB, BATCHES) as sink:
            assert 1 <= len(sink.todo) <= 2
            kept = [batch for batch in BATCHES if batch not in sink.todo]
            assert [record.index for record in sink.records] == [row for batch in kept for row in batch]
        assert len(said) == 1 and "moved that to samples.damaged-" in str(said[0].message)
        assert write(tmp_path).read_bytes() == whole
    lost = (path.parent / "samples.damaged-1.jsonl").read_bytes()
    assert lost and flipped(lost, 0) in whole


@pytest.mark.parametrize("shard", [0, 1])
def test_a_damaged_shard_is_not_merged_and_its_own_process_repairs_it(tmp_path: Path, shard: int) -> None:
    whole = write(tmp_path / "whole").read_bytes()
    path = tmp_path / "parts" / JOB.folder / f"samples.shard-{shard}-of-2.jsonl"
    write(tmp_path / "parts", (shard, 2))
    path.write_bytes(flipped(path.read_bytes(), 888))
    with pytest.warns(UserWarning, match=f"run shard {shard}/2 again"):
        write(tmp_path / "parts", (1 - shard, 2))
    assert not (path.parent / "samples.jsonl").exists()
    with pytest.warns(UserWarning, match="its samples are run again"):
        write(tmp_path / "parts", (shard, 2))
    assert (path.parent / "samples.jsonl").read_bytes() == whole


def overwrite(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.seek(70)
        stream.write(b"7")


def truncate(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.truncate(path.stat().st_size - 100)


def swap(path: Path) -> None:
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    copy.replace(path)


def remove(path: Path) -> None:
    path.unlink()


def grow(path: Path) -> None:
    with path.open("ab") as stream:
        stream.write(b"".join(path.read_bytes().splitlines(keepends=True)[:4]))


@pytest.mark.parametrize("meddle", [overwrite, truncate, swap, remove, grow])
@pytest.mark.parametrize("at", [1, len(BATCHES) - 1])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_file_that_changes_during_the_run_ends_it(tmp_path: Path, meddle: Callable[[Path], None], at: int) -> None:
    whole = write(tmp_path / "whole").read_bytes()
    path = tmp_path / "runs" / JOB.folder / "samples.jsonl"
    with (
        pytest.raises(VitattackError, match="changed by something else while this run was writing it: run the same"),
        Sink(tmp_path / "runs", JOB, BATCHES) as sink,
    ):
        for number, batch in enumerate(BATCHES):
            sink.write(rows(batch), NOTES.get(number, BatchNotes()))
            if number == at:
                meddle(path)
        sink.confirm(sink.first_pass)
    assert write(tmp_path / "runs").read_bytes() == whole


def test_a_result_is_of_exactly_the_samples_of_its_job(tmp_path: Path) -> None:
    with Sink(tmp_path, JOB, BATCHES) as sink:
        for batch in BATCHES[:2]:
            sink.write(rows(batch))
        with pytest.raises(VitattackError, match="lacks samples of its job"):
            sink.confirm(sink.first_pass)


def test_the_notes_of_a_batch_are_on_disk_with_it(tmp_path: Path) -> None:
    """A process that is killed right after a write has lost no doubt."""
    with Sink(tmp_path, JOB, BATCHES) as sink:
        sink.write(rows(BATCHES[0]), BatchNotes(("the model is random",), 1, 2))
    (tmp_path / JOB.folder / "events.jsonl").unlink(missing_ok=True)
    with Sink(tmp_path, JOB, BATCHES) as sink:
        sink.write(rows(BATCHES[1]), BatchNotes(("the model is random",), 0, 3))
        assert sink.notes == BatchNotes(("the model is random",), 1, 5)


def test_a_kill_while_a_file_is_written_anew_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(flipped(whole, 5000))
    with monkeypatch.context() as killed, pytest.warns(UserWarning, match="is damaged"):
        killed.setattr(
            "vitattack.records.record_file.append_durably", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            Sink(tmp_path, JOB, BATCHES)
    assert path.read_bytes() == b""
    with Sink(tmp_path, JOB, BATCHES) as sink:
        assert len(sink.todo) == 1
    assert write(tmp_path).read_bytes() == whole


def later_version(batch: Batch, **more: object) -> bytes:
    """A batch with fields that this version does not know, and the right checksum."""
    lines = "".join(
        json.dumps({**vars(r), "confidence": 0.5}, separators=(",", ":")) + "\n" for r in batch.records
    ).encode()
    closing = {"batch": batch.number, "pass": 1, "rows": len(batch.records), "schema": 2, "doubts": []}
    return lines + sealed_line({**closing, "backoffs": 0, "nudged": 0, **more}, before=lines)


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("more", [{}, {"schema": 3}, {"weather": "fine"}])
def test_records_of_a_later_version_are_refused_and_not_touched(tmp_path: Path, more: dict[str, object]) -> None:
    path = write(tmp_path)
    path.write_bytes(path.read_bytes() + later_version(Batch(4, tuple(rows((50, 51)))), **more))
    before = files_in(path.parent)
    with pytest.raises(UsageError, match="use the version of vitattack that wrote it, --fresh, or another --out"):
        Sink(tmp_path, JOB, BATCHES)
    assert files_in(path.parent) == before
    with Sink(tmp_path, JOB, BATCHES, fresh=True) as sink:
        assert sink.todo == BATCHES


@pytest.mark.parametrize("name", ["job.json", "result.json"])
def test_a_later_schema_is_refused_and_not_touched(tmp_path: Path, name: str) -> None:
    path = write(tmp_path)
    (path.parent / name).write_text(json.dumps({"schema": 99}))
    before = files_in(path.parent)
    with pytest.raises(UsageError, match=rf"{name} is of schema 99, this version knows up to 2: use the version"):
        Sink(tmp_path, JOB, BATCHES)
    assert files_in(path.parent) == before
    Sink(tmp_path, JOB, BATCHES, fresh=True).__exit__()
    assert (load(path.parent / "job.json") or {})["key"] == JOB.key


WRONG = [
    b"\xff\xfe",
    b"[" * 100_000,
    b"[1, 2]",
    b'{"schema": "x"}',
    b'{"schema": 2, "crc": 5}',
    b'{"schema": 1, "key": 7}',
]


@pytest.mark.parametrize("content", WRONG, ids=["utf8", "nesting", "list", "schema", "crc", "key"])
def test_a_damaged_job_file_is_moved_aside_and_made_again(tmp_path: Path, content: bytes) -> None:
    folder = write(tmp_path).parent
    whole = files_in(folder)
    (folder / "job.json").write_bytes(content)
    with (
        pytest.warns(UserWarning, match="moved it to job.damaged-1.json, it is made again"),
        Sink(tmp_path, JOB, BATCHES),
    ):
        pass
    assert files_in(folder) == {**whole, "job.damaged-1.json": content}


@pytest.mark.parametrize("name", ["job.json", "events.jsonl"])
def test_no_flipped_bit_of_the_files_beside_goes_unnoticed(tmp_path: Path, name: str) -> None:
    path = write(tmp_path).with_name(name)
    whole = path.read_bytes()
    with Sink(tmp_path, JOB, BATCHES) as sink:
        events = sink.events()
    for bit in range(0, 8 * len(whole), 1 if name == "events.jsonl" else 11):
        changed = flipped(whole, bit)
        if name == "job.json":
            path.write_bytes(changed)
            try:
                load(path)
            except (Damaged, UsageError):
                continue
            assert json.loads(changed) == json.loads(whole), bit
        else:
            for line in changed.split(b"\n"):
                try:
                    assert not line or opened_line(line) in events
                except Damaged:
                    continue


def test_damaged_events_are_moved_aside_and_the_others_still_count(tmp_path: Path) -> None:
    path = write(tmp_path).with_name("events.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(
        lines[0] + b'{"seconds": 1e9}\n\xff\xfe\n' + b"[" * 10_000 + b"\n" + b"".join(lines[1:]) + b'{"torn'
    )
    with pytest.warns(UserWarning, match=r"3 of 8 lines.*the seconds they held"), Sink(tmp_path, JOB, BATCHES) as sink:
        assert sum(event["seconds"] for event in sink.events()) == len(BATCHES)
    assert path.read_bytes() == b"".join(lines) and path.with_name("events.damaged-1.jsonl").exists()


def test_what_could_not_be_read_back_is_not_written(tmp_path: Path) -> None:
    strange: list[object] = [{"evidence": {"x": [1]}}, {"size": float("nan")}, {"label": -2}, {"clean": "3"}]
    with Sink(tmp_path, JOB, BATCHES) as sink:
        for change in strange:
            wrong = [replace(rows((3,))[0], **change), *rows((1, 4))]  # type: ignore[arg-type]
            with pytest.raises(VitattackError, match="gave image 3 a record that cannot be stored"):
                sink.write(wrong)
        assert sink.todo == BATCHES


def test_a_damaged_file_gets_a_name_of_its_own(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        path = tmp_path / "learned.json"
        path.write_text("{")
        assert move_aside(path).name == f"learned.damaged-{number}.json"
    path.write_text(sealed_text({"a": 1}))
    assert load(path) == {"schema": 2, "a": 1} and load(tmp_path / "none") is None
