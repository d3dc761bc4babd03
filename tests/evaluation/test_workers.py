"""Workers: records do not depend on their number, however a run ends; the machine's own choice."""

from __future__ import annotations

import os
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import toy_pictures
from vitattack import evaluate
from vitattack.attacks.price import PassesPerImage, Price
from vitattack.core.errors import UsageError, VitattackError
from vitattack.core.progress import Listener, listening
from vitattack.evaluation import workers
from vitattack.evaluation.listener import EvaluationListener
from vitattack.evaluation.workers import Speed, Workers, alone, check_jobs, decided, measured, quickest
from vitattack.models.victim import Victim
from vitattack.records.job import Job
from vitattack.records.record import RecordListener
from vitattack.records.result import Result

CPU = torch.device("cpu")


class Silent(Listener):
    def note(self, line: str) -> None:
        pass


def attacked(out: Path, victim: Victim, attack: str, **more: Any) -> Result:
    x = toy_pictures(36)
    settings: dict[str, Any] = {"threads": 1, "batch_size": 4, "threat": "linf:4/255", "certificate": False, **more}
    with torch.no_grad():
        (result,) = evaluate(victim, attack, data=(x, victim(x).argmax(1)), out=out, **settings).results
    return result


def stored(out: Path) -> bytes:
    (path,) = out.glob("*/samples.jsonl")
    return path.read_bytes()


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch, few_queries: None) -> None:
    monkeypatch.setattr("vitattack.attacks.auto.attack.BLOCK", 12)


ATTACKS = ["pgd(steps=4)", "worst(fgsm, pgd(steps=3))", "auto(steps=2, k=2, long=4)"]


@pytest.mark.parametrize("attack", ATTACKS)
def test_two_processes_store_the_bytes_of_one(tmp_path: Path, toy: Victim, small_blocks: None, attack: str) -> None:
    one, two = (attacked(tmp_path / str(jobs), toy, attack, jobs=jobs) for jobs in (1, 2))
    assert stored(tmp_path / "1") == stored(tmp_path / "2")
    assert one.records == two.records and one.doubts == two.doubts and one.sections == two.sections
    assert one.provenance["workers"] == {"processes": 1, "threads": 1}
    assert two.provenance["workers"] == {"processes": 2, "threads": 1}


def test_scales_that_aas_learned_reach_every_process(tmp_path: Path, toy: Victim) -> None:
    settings = {"calibration": (toy_pictures(8, seed=5), torch.arange(8))}
    one, two = (attacked(tmp_path / str(n), toy, "aas(pgd(steps=2))", jobs=n, **settings) for n in (1, 2))
    assert stored(tmp_path / "1") == stored(tmp_path / "2")
    assert one.learned and two.learned and one.learned["learned"] == two.learned["learned"]


def test_candidates_of_every_process_are_kept(tmp_path: Path, toy: Victim) -> None:
    for jobs in (1, 2):
        attacked(tmp_path / str(jobs), toy, "fgsm", jobs=jobs, save_adv=True)
    one, two = (
        {path.name: path.read_bytes() for path in (tmp_path / str(jobs)).glob("*/adversarial/*")} for jobs in (1, 2)
    )
    assert one == two and len(one) == 9


class Stopped(Exception):
    pass


class Stop(EvaluationListener):
    """Ends a run once so many batches are stored."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def job(self, job: Job, number: int, count: int) -> RecordListener:
        def watch(records: object, total: int) -> None:
            self.batches -= 1
            if self.batches < 0:
                raise Stopped

        return watch

    def again(self, job: Job, name: str) -> RecordListener:
        return self.job(job, 0, 1)


@pytest.mark.parametrize("attack", ATTACKS[::2])
@pytest.mark.parametrize("batches", [1, 2, 3])
def test_a_stopped_run_ends_the_same_with_any_jobs(
    tmp_path: Path, toy: Victim, small_blocks: None, attack: str, batches: int
) -> None:
    attacked(tmp_path / "whole", toy, attack)
    with pytest.raises(Stopped):
        attacked(tmp_path / "stopped", toy, attack, jobs=2, listener=Stop(batches))
    assert stored(tmp_path / "stopped")
    attacked(tmp_path / "stopped", toy, attack, jobs=1 + batches % 2)
    assert stored(tmp_path / "whole") == stored(tmp_path / "stopped")


def test_the_listener_hears_of_every_image_once(tmp_path: Path, toy: Victim) -> None:
    seen: list[int] = []

    class Seen(EvaluationListener):
        def job(self, job: Job, number: int, count: int) -> RecordListener:
            return lambda records, total: seen.extend(record.index for record in records)

    attacked(tmp_path, toy, "fgsm", jobs=3, listener=Seen())
    assert sorted(seen) == [*range(36)]


class Moody(nn.Module):
    """A model that kills its process, or fails, at a brightness that one image has."""

    def __init__(self, victim: Victim, act: str, marker: Path | None = None) -> None:
        super().__init__()
        self.victim, self.act, self.marker, self.home = victim, act, marker, os.getpid()

    def forward(self, x: Tensor) -> Tensor:
        if os.getpid() != self.home and bool((x == 1).flatten(1).all(1).any()):
            if self.act == "raise":
                raise ValueError("no white images, please")
            if self.marker is None or not self.marker.exists():
                if self.marker is not None:
                    self.marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return self.victim(x)


def with_white(out: Path, model: nn.Module, **more: Any) -> Result:
    x = toy_pictures(16)
    x[9] = 1
    with listening(Silent()):
        return evaluate(
            model, "fgsm", data=(x, torch.arange(16) % 10), out=out, threads=1, batch_size=4, **more
        ).results[0]


def test_a_killed_process_costs_no_record(tmp_path: Path, toy: Victim) -> None:
    whole = with_white(tmp_path / "a", Moody(toy, "kill", tmp_path / "died"), jobs=1)
    two = with_white(tmp_path / "b", Moody(toy, "kill", tmp_path / "died"), jobs=2)
    assert (tmp_path / "died").exists() and whole.records == two.records


def test_an_error_of_a_process_is_that_of_one_and_other_batches_are_kept(tmp_path: Path, toy: Victim) -> None:
    with pytest.raises(ValueError, match="no white images"):
        with_white(tmp_path, Moody(toy, "raise"), jobs=2)
    with pytest.raises(VitattackError, match="signal 9, 4 times"):
        with_white(tmp_path, Moody(toy, "kill"), jobs=2)


def test_warnings_of_the_model_are_warned_here(tmp_path: Path, toy: Victim) -> None:
    class Warning_(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            warnings.warn("from the model", RuntimeWarning, stacklevel=1)
            return toy(x)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with_white(tmp_path, Warning_(), jobs=2)
    assert {str(each.message) for each in told if each.category is RuntimeWarning} == {"from the model"}


# The choice.


def test_every_core_gets_a_process_where_batches_and_memory_suffice() -> None:
    assert quickest(Speed({1: 1.0}), 100, 16, None)[:2] == (16, 1)
    assert quickest(Speed({1: 1.0, 2: 0.8}), 3, 2, None)[:2] == (2, 1)


def test_few_batches_get_several_threads_each() -> None:
    speed = Speed({1: 1.0, 2: 0.6, 4: 0.4, 8: 0.35, 16: 0.5})
    assert quickest(speed, 4, 16, None)[:2] == (4, 4)
    assert quickest(speed, 1, 16, None)[:2] == (1, 8)


def test_short_memory_leaves_fewer_processes() -> None:
    speed = Speed({1: 1.0, 2: 0.6, 4: 0.4}, memory=2**30)
    assert quickest(speed, 64, 4, 10 * 2**30)[:2] == (4, 1)
    assert quickest(speed, 64, 4, 3 * 2**30)[:2] == (2, 2)
    assert quickest(speed, 64, 4, 2**20)[:2] == (1, 4)


def test_nearly_as_fast_with_fewer_processes_is_preferred() -> None:
    assert quickest(Speed({1: 1.0, 4: 0.26}), 64, 4, None)[:2] == (1, 4)


def test_threads_that_a_busy_machine_makes_slow_are_not_chosen() -> None:
    assert quickest(Speed({1: 1.0, 2: 40.0}), 1, 2, None)[:2] == (1, 1)


def test_a_measurement_leaves_no_trace(toy: Victim) -> None:
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    speed = measured(toy, 8, [1, 2])
    assert set(speed.seconds) == {1, 2} and min(speed.seconds.values()) > 0 and speed.memory > 8 * 3 * 32 * 32 * 4
    assert torch.equal(state, torch.get_rng_state()) and torch.get_num_threads() == threads
    assert not toy.training and all(parameter.grad is None for parameter in toy.parameters())


def test_a_model_without_gradients_is_left_to_one_process() -> None:
    class Cut(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.detach().flatten(1)[:, :10]

    assert not measured(Victim(Cut(), name="cut", num_classes=10, input_size=8), 4, [1]).seconds


JOB = Job("m", "pgd", "linf:0.1", "d", "w", "p", threads=4)


def choice(victim: Victim, root: Path, *, passes: float, images: int = 400, threads: int | None = None) -> Workers:
    return decided(root, JOB, victim, Price(PassesPerImage(passes)), images, 64, threads)


def test_small_work_stays_in_one_process(tmp_path: Path, toy: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "usable_cores", lambda: 4)
    monkeypatch.setattr(workers, "measured", lambda victim, size, threads: Speed(dict.fromkeys(threads, 0.01)))
    assert choice(toy, tmp_path, passes=1)[:2] == (1, 1)
    assert choice(toy, tmp_path, passes=100)[:2] == (4, 1)
    assert choice(toy, tmp_path, passes=100, threads=2)[:2] == (2, 2)
    assert choice(toy, tmp_path, passes=100, images=64)[:2] == (1, 4)


@pytest.mark.parametrize(("passes", "images"), [(1, 400), (100, 64)], ids=["small work", "one batch"])
def test_one_process_gets_no_threads_that_a_busy_machine_makes_slow(
    tmp_path: Path, toy: Victim, monkeypatch: pytest.MonkeyPatch, passes: float, images: int
) -> None:
    monkeypatch.setattr(workers, "usable_cores", lambda: 2)
    speed = {1: 0.01, 2: 0.4}
    monkeypatch.setattr(workers, "measured", lambda victim, size, threads: Speed({at: speed[at] for at in threads}))
    assert choice(toy, tmp_path, passes=passes, images=images)[:2] == (1, 1)
    assert choice(toy, tmp_path, passes=passes, images=images, threads=2)[:2] == (1, 2)


def test_a_begun_run_goes_on_with_its_threads(tmp_path: Path, toy: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "usable_cores", lambda: 4)
    folder = tmp_path / JOB.folder
    folder.mkdir()
    (folder / "job.json").touch()
    assert choice(toy, tmp_path, passes=100)[:2] == (1, 4)


def test_no_copies_beside_a_gpu_or_without_fork(toy: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    check_jobs(8, CPU)
    with pytest.raises(UsageError, match="cuda devices do not follow"):
        check_jobs(2, torch.device("cuda"))
    with monkeypatch.context() as other:
        other.setattr(torch.cuda, "is_available", lambda: True)
        with pytest.raises(UsageError, match="CUDA_VISIBLE_DEVICES= hides them"):
            check_jobs(2, CPU)
        assert choice(toy, Path("nowhere"), passes=1e9) == alone(None)
    with monkeypatch.context() as other:
        other.setattr(workers, "can_fork", lambda: False)
        with pytest.raises(UsageError, match="only Linux"):
            check_jobs(2, CPU)
        check_jobs(1, CPU)


def test_wrong_numbers_of_jobs_are_refused(toy: Victim) -> None:
    with pytest.raises(UsageError, match="0 jobs are too few"):
        evaluate(toy, "fgsm", jobs=0)
