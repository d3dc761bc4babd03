"""Runs whose stored files are damaged, cut or changed under their hands: the same numbers in the end, or one line."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import tiny_vit
from vitattack import evaluate
from vitattack.bench.run.stored_cells import result_in
from vitattack.core.errors import UsageError, VitattackError
from vitattack.evaluation.listener import EvaluationListener
from vitattack.records.job import Job
from vitattack.records.record import RecordListener, SampleRecord
from vitattack.records.result import Result
from vitattack.records.sealed import load
from vitattack.records.store import Sink
from vitattack.records.stored_result import last_records, read_result

Images = tuple[Tensor, Tensor]
LEARNS = "aas(pgd(steps=1), steps=1, restarts=1, calibration=4)"


def run(out: Path | None, images: Images, attack: str = "fgsm", model: nn.Module | None = None, **more: Any) -> Result:
    settings: dict[str, Any] = {"threat": "linf:0.002", "batch_size": 4, "threads": 1, "data": images, **more}
    if attack.startswith("aas"):
        settings["calibration"] = (images[0].flip(3), images[1])
    return evaluate(model or tiny_vit(), attack, out=out, **settings).results[0]


def told(result: Result) -> tuple[list[str], tuple[str, ...], dict[str, Any]]:
    return [record.line() for record in result.records], result.doubts, result.provenance


@pytest.mark.parametrize("seed", range(2))
def test_a_flipped_bit_in_any_file_changes_no_number(tmp_path: Path, toy_images: Images, seed: int) -> None:
    """The result is the same, and where a bit mattered a line on stderr says so."""
    first = run(tmp_path, toy_images, LEARNS)
    assert first.folder is not None
    files = ["samples.jsonl", "samples.jsonl", "result.json", "events.jsonl", "learned.json", "job.json", "probe.json"]
    samples = (first.folder / "samples.jsonl").read_bytes()
    luck = random.Random(seed)
    for name in files:
        path = first.folder / name
        content = bytearray(path.read_bytes())
        content[luck.randrange(len(content))] ^= 1 << luck.randrange(8)
        path.write_bytes(bytes(content))
        with warnings.catch_warnings(record=True, action="always") as said:
            try:
                again = run(tmp_path, toy_images, LEARNS)
            except UsageError as error:  # the schema itself became a later one
                assert "is of schema" in str(error)
                path.unlink()
                again = run(tmp_path, toy_images, LEARNS)
        assert told(again) == told(first), name
        assert (first.folder / "samples.jsonl").read_bytes() == samples
        if again.seconds != pytest.approx(first.seconds, abs=0.002):
            assert said and all("damaged" in str(each.message) for each in said)
            first = again


WRONG = [b"\xff\xfe", b"[" * 100_000, b"null", b"{}", b'{"schema": 1, "learned": 5, "robust": [], "doubts": 3}']


@pytest.mark.parametrize("content", WRONG, ids=["utf8", "nesting", "null", "empty", "types"])
@pytest.mark.parametrize("name", ["result.json", "events.jsonl", "learned.json", "job.json", "probe.json"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_cannot_be_read_is_made_again(tmp_path: Path, toy_images: Images, name: str, content: bytes) -> None:
    attack = LEARNS if name == "learned.json" else "fgsm"
    first = run(tmp_path, toy_images, attack)
    assert first.folder is not None
    for interrupted in (False, True):
        (first.folder / name).write_bytes(content)
        if interrupted:
            samples = first.folder / "samples.jsonl"
            samples.write_bytes(samples.read_bytes()[:-700])
        again = run(tmp_path, toy_images, attack)
        assert told(again) == told(first)


class During(EvaluationListener):
    """Does something to the record file after a number of batches of the first pass."""

    def __init__(self, root: Path, meddle: Callable[[Path], None], after: int) -> None:
        self._root, self._meddle, self._left = root, meddle, after

    def job(self, job: Job, number: int, count: int) -> RecordListener:
        def watch(records: Sequence[SampleRecord], total: int) -> None:
            self._left -= bool(records)
            if records and self._left == 0:
                self._meddle(self._root / job.folder / "samples.jsonl")

        return watch


def overwrite(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.seek(60)
        stream.write(b"\x00")


def cut(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.truncate(300)


@pytest.mark.parametrize("after", [1, 3])
@pytest.mark.parametrize("meddle", [overwrite, cut, Path.unlink])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_no_table_over_a_part(tmp_path: Path, toy_images: Images, meddle: Callable[[Path], None], after: int) -> None:
    """A file that changed while the run was writing it ends the run, and the next one computes what is missing."""
    alone = run(None, toy_images)
    with pytest.raises(VitattackError, match="was changed by something else while this run was writing it"):
        run(tmp_path, toy_images, listener=During(tmp_path, meddle, after))
    assert not [*tmp_path.glob("*/result.json")]
    again = run(tmp_path, toy_images)
    assert (told(again)[0], again.n) == (told(alone)[0], 12)


class Adaptive(nn.Module):
    """A model that differentiates inside its forward, which is doubted."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            z = x.detach().requires_grad_()
            (grad,) = torch.autograd.grad(z.square().sum(), z)
        return (x - 0.01 * grad).flatten(1)[:, :10]


def test_a_kill_between_a_batch_and_its_events_loses_no_doubt(
    tmp_path: Path, toy_images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = (toy_images[0], Adaptive()(toy_images[0]).argmax(1))
    with monkeypatch.context() as killed:
        killed.setattr(
            Sink, "note", lambda self, event: (_ for _ in ()).throw(KeyboardInterrupt) if "n" in event else None
        )
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, images, "random", Adaptive())
    found = run(tmp_path, images, "random", Adaptive())
    assert any("differentiates inside its own forward" in doubt for doubt in found.doubts)


class Leaking(nn.Module):
    """A model that counts its forwards in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny_vit().model
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        logits: Tensor = self.inner(x)
        return logits


def test_a_state_that_leaks_is_said_after_a_kill_too(tmp_path: Path, toy_images: Images) -> None:
    class Killed(Exception):
        pass

    def kill(path: Path) -> None:
        raise Killed

    with pytest.raises(Killed):
        run(tmp_path, toy_images, model=Leaking(), listener=During(tmp_path, kill, 3))
    found = run(tmp_path, toy_images, model=Leaking())
    assert any("its state leaks between images" in doubt for doubt in found.doubts)


def test_a_finished_run_that_was_damaged_is_not_printed(tmp_path: Path, toy_images: Images) -> None:
    first = run(tmp_path, toy_images)
    assert first.folder is not None
    path = first.folder / "samples.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"robust"', b'"fooled"', 1))
    assert read_result(tmp_path, first.folder.name) is None and result_in(first.folder) is None
    with pytest.raises(VitattackError, match="was damaged after its job had ended: run the same command again"):
        last_records(first.folder)
    with pytest.warns(UserWarning, match=r"damaged \(bytes 0 to .*samples.damaged-1.jsonl, its samples are run again"):
        again = run(tmp_path, toy_images)
    assert told(again) == told(first) and path.read_bytes() == whole


@pytest.mark.parametrize("left", ["nothing", "a part", "zeros"])
def test_a_finished_run_whose_end_is_gone_is_run_again_with_a_word(
    tmp_path: Path, toy_images: Images, left: str
) -> None:
    first = run(tmp_path, toy_images)
    assert first.folder is not None
    path = first.folder / "samples.jsonl"
    whole = path.read_bytes()
    path.write_bytes({"nothing": b"", "a part": whole[:-40], "zeros": b"\0" * len(whole)}[left])
    with pytest.warns(UserWarning, match="samples.jsonl (lacks the end|is damaged)"):
        again = run(tmp_path, toy_images)
    assert told(again) == told(first) and path.read_bytes() == whole


def test_provenance_and_doubts_are_covered(tmp_path: Path, toy_images: Images) -> None:
    first = run(tmp_path, toy_images)
    assert first.folder is not None
    path = first.folder / "result.json"
    for name, value in (("provenance", {"threads": 99}), ("doubts", []), ("seconds", 0.0), ("n", 11)):
        content = json.loads(path.read_text())
        path.write_text(json.dumps({**content, name: value if value != content[name] else ["none"]}))
        assert read_result(tmp_path, first.folder.name) is None
        with pytest.warns(UserWarning, match="result.json is damaged .its checksum does not fit.: moved it to"):
            assert told(run(tmp_path, toy_images)) == told(first)


def test_a_later_schema_ends_in_one_line(tmp_path: Path, toy_images: Images) -> None:
    first = run(tmp_path, toy_images)
    assert first.folder is not None
    for name in ("result.json", "job.json"):
        path = first.folder / name
        kept = path.read_bytes()
        path.write_text(json.dumps({**json.loads(kept), "schema": 99}))
        if name == "job.json":
            (first.folder / "result.json").unlink()
        before = {each.name: each.read_bytes() for each in first.folder.iterdir()}
        with pytest.raises(
            UsageError, match="is of schema 99, this version knows up to 2: use the version of vitattack"
        ):
            run(tmp_path, toy_images)
        assert {each.name: each.read_bytes() for each in first.folder.iterdir()} == before
        path.write_bytes(kept)
    assert load(first.folder / "job.json") is not None
