"""A run shared by several GPUs, with processes on the CPU in their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from vitattack import evaluate
from vitattack.core.errors import UsageError, VitattackError
from vitattack.core.new_process import Died
from vitattack.core.progress import Listener, listening
from vitattack.core.runtime import several_gpus
from vitattack.evaluation import gpu_shards
from vitattack.evaluation.gpu_shards import over_gpus
from vitattack.evaluation.setup import Setup
from vitattack.records.result import Evaluation

RUN: dict[str, Any] = {"model": "tiny-cnn-standard", "attacks": "fgsm", "limit": 24, "batch_size": 4, "threads": 1}


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitattack.evaluation.evaluate.several_gpus", lambda device: ["5", "7"])


class Heard(Listener):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


@pytest.mark.slow
def test_two_gpus_store_the_bytes_of_one_process(tmp_path: Path, two_gpus: None) -> None:
    with listening(Heard()):
        (two,) = evaluate(**RUN, out=tmp_path / "two").results
        (one,) = evaluate(**RUN, out=tmp_path / "one", jobs=1).results
    assert one.folder and two.folder and one.records == two.records
    assert (one.folder / "samples.jsonl").read_bytes() == (two.folder / "samples.jsonl").read_bytes()
    assert (two.folder / "samples.shard-1-of-2.jsonl").exists()


def test_more_jobs_than_gpus_are_refused(two_gpus: None) -> None:
    with pytest.raises(UsageError, match="3 jobs are too many for 2 GPUs: use --jobs 2"):
        evaluate(**RUN, jobs=3)


def test_only_several_gpus_that_may_be_chosen_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert several_gpus("auto") == several_gpus("cuda") == ["0", "1", "2"]
    assert several_gpus("cpu") == several_gpus("cuda:1") == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6,GPU-8")
    assert several_gpus("auto") == ["4", "6", "GPU-8"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert several_gpus("auto") == []


class Fake:
    """Processes in whose place nothing runs: how each ends is told beforehand."""

    def __init__(self, *ends: Any) -> None:
        self.ends, self.started, self.killed = list(ends), [], 0  # type: ignore[var-annotated]

    def __call__(self, function: str, arguments: Any, environment: Any) -> Fake:
        self.started.append((arguments["setup"], environment["CUDA_VISIBLE_DEVICES"]))
        return self

    def result(self) -> None:
        if isinstance(end := self.ends.pop(0), Exception):
            raise end

    def kill(self) -> None:
        self.killed += 1


def run_on(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> list[Setup]:
    mine: list[Setup] = []

    def run(setup: Setup) -> Evaluation:
        mine.append(setup)
        return Evaluation((), unfinished=1)

    monkeypatch.setattr(gpu_shards, "Call", fake)
    with listening(Heard()):
        over_gpus(["3", "4", "5"], Setup(fresh=True), run, "m:f", {})
    return mine


def test_every_gpu_has_its_shard_and_the_first_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(None, None)
    mine = run_on(fake, monkeypatch)
    assert [(setup.shard, gpu) for setup, gpu in fake.started] == [((1, 3), "4"), ((2, 3), "5")]
    assert [(setup.shard, setup.fresh, setup.jobs) for setup in mine] == [((0, 3), True, 1), ((0, 3), False, 1)]


def test_a_dead_process_is_replaced_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(Died("signal 9"), None, None)
    run_on(fake, monkeypatch)
    assert [(setup.shard, setup.fresh) for setup, _ in fake.started] == [
        ((1, 3), True),
        ((2, 3), True),
        ((1, 3), False),
    ]


def test_a_process_that_dies_again_and_again_ends_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(*[Died("signal 9")] * 4)
    with pytest.raises(VitattackError, match="GPU 4 ended with signal 9, 4 times: use a smaller --batch-size"):
        run_on(fake, monkeypatch)
    assert fake.killed >= 2
