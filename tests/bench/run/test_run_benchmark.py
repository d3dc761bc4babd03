"""Same records from every executor; a failure, a dead worker or an interrupt affects its own cell only."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vitattack.bench import tasks
from vitattack.bench.cells import Cell
from vitattack.bench.executors.executor import BenchProgress, Executor, SerialExecutor
from vitattack.bench.executors.processes import ProcessExecutor
from vitattack.bench.options import BenchOptions
from vitattack.bench.run import stored_cells
from vitattack.bench.run.results import CellResult
from vitattack.bench.run.run_benchmark import run_cells
from vitattack.bench.schema import CellSettings
from vitattack.bench.tasks import Listener, Outcome, Task
from vitattack.core.assets import EMBEDDED
from vitattack.data.catalogue import CIFAR10
from vitattack.records.sealed import opened_line, sealed_line
from vitattack.records.stored_result import last_records

SETTINGS = CellSettings(batch_size=4)
CELLS = tuple(
    Cell(
        model=model,
        label=model,
        attack=attack,
        attack_label=attack,
        threat="linf:8/255",
        seed=0,
        data="cifar10-demo[:12]",
        settings=SETTINGS,
    )
    for model in ("tiny-vit", "tiny-cnn-standard")
    for attack in ("fgsm", "pgd(steps=2)")
)


def run(
    store: Path,
    executor: Executor,
    cells: Sequence[Cell] = CELLS,
    progress: BenchProgress = BenchProgress(),
    **options: object,
) -> tuple[CellResult, ...]:
    found, interrupted = run_cells(cells, BenchOptions(store=store, **options), executor, progress)  # type: ignore[arg-type]
    assert not interrupted
    return found


def lines(found: Sequence[CellResult]) -> list[bytes]:
    """All records of a matrix, byte by byte."""
    return [
        each.cell.name.encode() + b" " + line
        for each in found
        for line in (each.folder / "samples.jsonl").read_bytes().splitlines()  # type: ignore[operator]
    ]


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    return lines(run(tmp_path_factory.mktemp("serial"), SerialExecutor()))


class Steps(BenchProgress):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.outcomes: list[Outcome] = []
        self.moves: list[tuple[str, int, int]] = []

    def moved(self, task: Task, done: int, total: int) -> None:
        self.moves.append((task.name, done, total))

    def ended(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    def note(self, line: str) -> None:
        self.notes.append(line)


def test_serial_in_any_order_and_in_shards_gives_the_same_records(tmp_path: Path, serial: list[bytes]) -> None:
    assert sum(b'{"index":' in line for line in serial) == 12 * len(CELLS)
    assert len(serial) == (12 + 12 // 4) * len(CELLS)  # a line more closes every batch
    assert sorted(lines(run(tmp_path / "back", SerialExecutor(), CELLS[::-1]))) == sorted(serial)
    steps = Steps()
    assert lines(run(tmp_path / "shards", SerialExecutor(), shards=2, progress=steps)) == serial
    assert [each.status for each in steps.outcomes] == ["part", "ok"] * len(CELLS)
    assert steps.moves[-1] == (f"{CELLS[-1].name} 1/2", 4, 4)


def test_the_second_run_opens_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(tmp_path, SerialExecutor(), CELLS[:1])
    monkeypatch.setattr(tasks, "_run", None)
    again = run(tmp_path, SerialExecutor(), CELLS[:1])
    assert again[0].from_store and not first[0].from_store
    assert again[0].robust == first[0].robust and list(again[0].records()) == list(first[0].records())


def test_a_store_without_notes_is_asked_by_key(tmp_path: Path) -> None:
    first = run(tmp_path, SerialExecutor(), CELLS[:1])
    (tmp_path / "cells.jsonl").unlink()
    assert run(tmp_path, SerialExecutor(), CELLS[:1])[0] == replace(first[0], from_store=True)


def test_notes_and_results_that_somebody_spoilt_are_not_believed(tmp_path: Path) -> None:
    first = run(tmp_path, SerialExecutor(), CELLS[:1])
    notes = tmp_path / "cells.jsonl"
    whole = notes.read_bytes()
    for folder in (5, None, ["x"], "../" + str(tmp_path)):
        notes.write_bytes(whole + sealed_line({**opened_line(whole), "folder": folder}))
        assert run(tmp_path, SerialExecutor(), CELLS[:1])[0].robust == first[0].robust
    notes.write_bytes(b"\xff\xfe\n[[1], {}]\n" + whole)
    assert run(tmp_path, SerialExecutor(), CELLS[:1])[0].robust == first[0].robust
    result = first[0].folder / "result.json"  # type: ignore[operator]
    for wrong in (5, {"accuracy": 1.0}):
        result.write_text(json.dumps({**json.loads(result.read_text()), "robust": wrong}))
        assert stored_cells.result_in(result.parent) is None
        with pytest.warns(UserWarning, match="result.json is damaged .* it is made again"):
            assert run(tmp_path, SerialExecutor(), CELLS[:1])[0].robust == first[0].robust


def test_a_checkpoint_that_was_written_again_is_another(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    path.write_bytes(b"one")
    cell = replace(CELLS[0], model=str(path))
    before = stored_cells.fingerprint(cell, None, "cpu")
    path.write_bytes(b"three")
    assert before is not None and stored_cells.fingerprint(cell, None, "cpu") not in (None, before)


def cifar10_in(root: Path, first: int) -> Path:
    """The hub's layout of CIFAR-10 with eight of the embedded images; always as many bytes."""
    table = pq.read_table(EMBEDDED / "cifar10-demo.parquet", columns=["img", "label"])
    path = root / CIFAR10 / "plain_text" / "test-00000-of-00001.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    labels = pa.array([(label + first) % 10 for label in table["label"].to_pylist()[:8]], pa.int64())
    pq.write_table(pa.table({"img": table["img"].slice(0, 8), "label": labels}), path, compression="none")
    return path


def test_a_file_below_the_data_folder_that_has_changed_is_read_again(tmp_path: Path) -> None:
    cell = replace(CELLS[0], data="cifar10[:8]")
    where = {"data_dir": str(tmp_path / "data")}
    path = cifar10_in(tmp_path / "data", 0)
    before = path.stat()
    right = run(tmp_path / "runs", SerialExecutor(), [cell], **where)[0]
    assert run(tmp_path / "runs", SerialExecutor(), [cell], **where)[0].from_store
    cifar10_in(tmp_path / "data", 1)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as cp -p and rsync leave it
    assert path.stat().st_size == before.st_size
    wrong = run(tmp_path / "runs", SerialExecutor(), [cell], **where)[0]
    assert not wrong.from_store and right.clean is not None and wrong.clean is not None
    assert wrong.clean.correct < right.clean.correct


def test_a_checkpoint_of_the_same_size_and_time_is_another(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    path.write_bytes(b"one")
    status = path.stat()
    cell = replace(CELLS[0], model=str(path))
    before = stored_cells.fingerprint(cell, None, "cpu")
    path.write_bytes(b"two")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert before is not None and stored_cells.fingerprint(cell, None, "cpu") not in (None, before)


def test_a_cell_whose_data_changed_during_the_run_is_not_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = replace(CELLS[0], data="cifar10[:8]")
    cifar10_in(tmp_path / "data", 0)
    kept = tasks._run

    def changing(task: Task, listener: Listener) -> Outcome:
        outcome = kept(task, listener)
        cifar10_in(tmp_path / "data", 1)
        return outcome

    monkeypatch.setattr(tasks, "_run", changing)
    run(tmp_path / "runs", SerialExecutor(), [cell], data_dir=str(tmp_path / "data"))
    assert not (tmp_path / "runs" / "cells.jsonl").exists()


def test_records_that_were_cut_off_are_made_again(tmp_path: Path) -> None:
    first = run(tmp_path, SerialExecutor(), CELLS[:1])
    path = first[0].folder / "samples.jsonl"  # type: ignore[operator]
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.warns(UserWarning, match="lacks the end that it had"):
        again = run(tmp_path, SerialExecutor(), CELLS[:1])
    assert not again[0].from_store and path.read_bytes() == whole


def test_two_spellings_of_a_job_are_run_once(tmp_path: Path) -> None:
    steps = Steps()
    two = [CELLS[0], replace(CELLS[0], attack="fgsm()", attack_label="again")]
    found = run(tmp_path, SerialExecutor(), two, progress=steps)
    assert len(steps.outcomes) == 1 and found[0].folder == found[1].folder and found[1].cell.attack_label == "again"


def test_one_failing_cell_stops_nobody_and_only_it_is_run_again(tmp_path: Path) -> None:
    cells = [replace(CELLS[0], data="npz:missing.npz"), CELLS[0], replace(CELLS[1], model="nothing.pt")]
    found = run(tmp_path, SerialExecutor(), cells)
    assert [each.status for each in found] == ["failed", "ok", "failed"]
    assert "missing.npz" in found[0].error and "nothing.pt" in found[2].error and "\n" not in found[2].error
    steps = Steps()
    run(tmp_path, SerialExecutor(), cells, progress=steps)
    assert [each.task.cell for each in steps.outcomes] == [cells[0], cells[2]]


def test_an_interrupt_keeps_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tasks._run

    def stopping(task: Task, listener: Listener) -> Outcome:
        if task.cell is CELLS[1]:
            raise KeyboardInterrupt
        return kept(task, listener)

    monkeypatch.setattr(tasks, "_run", stopping)
    found, interrupted = run_cells(CELLS[:3], BenchOptions(store=tmp_path), SerialExecutor())
    assert interrupted and [each.status for each in found] == ["ok", "cancelled", "cancelled"]


def test_fresh_forgets_all_shards(tmp_path: Path, serial: list[bytes]) -> None:
    first = run(tmp_path, SerialExecutor(), CELLS[:1], shards=2)
    for path in first[0].folder.glob("samples*"):  # type: ignore[union-attr]
        path.write_bytes(path.read_bytes().replace(b'"size":', b'"size":1'))
    assert (
        lines(run(tmp_path, SerialExecutor(), CELLS[:1], shards=2, fresh=True)) == serial[: len(serial) // len(CELLS)]
    )


def test_two_processes_give_the_same_records_and_survive_the_death_of_one(tmp_path: Path, serial: list[bytes]) -> None:
    class Killing(Steps):
        killed: int | None = None

        def moved(self, task: Task, done: int, total: int) -> None:
            super().moved(task, done, total)
            if self.killed is None and done:
                self.killed = children()[0]
                os.kill(self.killed, signal.SIGKILL)

    steps = Killing()
    assert sorted(lines(run(tmp_path, ProcessExecutor(2), shards=2, progress=steps))) == sorted(serial)
    assert steps.killed is not None and len(steps.notes) == 1 and "signal 9, starting it again" in steps.notes[0]
    assert not children()


@pytest.mark.slow
def test_closing_the_outcomes_ends_the_processes(tmp_path: Path) -> None:
    task = Task(CELLS[0], "fgsm", 1, str(tmp_path), device="cpu")
    outcomes: Generator[Outcome] = ProcessExecutor(2).run([task, replace(task, shard=(0, 2))], BenchProgress())
    next(outcomes)
    outcomes.close()
    assert not children()


def children() -> list[int]:
    """The worker processes of this one that are alive."""
    import multiprocessing

    return [each.pid for each in multiprocessing.active_children() if each.pid is not None]


@pytest.mark.slow
def test_passes_over_survivors_are_told_of_and_read_as_the_last_word(tmp_path: Path) -> None:
    """Whoever keeps the records of a worker elsewhere has those of later passes batch by batch."""
    seen: list[int] = []
    cell = replace(CELLS[2], attack="auto(steps=1, k=1, long=60)", threat="linf:0.0001", data="cifar10-demo[:8]")

    class Counting(Listener):
        def keyed(self, folder: str, root: Path) -> None:
            self.path = root / folder / "samples.jsonl"

        def moved(self, done: int, total: int) -> None:
            seen.append(self.path.read_bytes().count(b'{"index":'))
            assert (done, total) in ((0, 8), (8, 8))

    outcome = tasks.run_task(Task(cell, cell.attack, 1, str(tmp_path), device="cpu"), Counting())
    assert outcome.status == "ok" and outcome.folder is not None, outcome.error
    records = list(last_records(tmp_path / outcome.folder))
    probed = sum(r.pass_number == 2 for r in records)
    assert [r.index for r in records] == list(range(8)) and probed >= 1
    assert seen == [0, 8, 8, 8 + probed]
    assert stored_cells.result_in(tmp_path / outcome.folder) is not None
