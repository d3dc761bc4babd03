"""A run is the same whether it was killed, cut into pieces, or left alone."""

from __future__ import annotations

import csv
import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.train.small_runs import SHAPE, STEPS, affine, run, small
from vitattack.core.errors import UsageError, VitattackError
from vitattack.train.export import register_best
from vitattack.train.loop import early_stop
from vitattack.train.loop.checkpoints import Checkpoints
from vitattack.train.loop.early_stop import EarlyStop, TrainingStopped
from vitattack.train.loop.initial_weights import run_key
from vitattack.train.loop.reporter import Reporter, Row
from vitattack.train.loop.session import Session
from vitattack.train.recipe import Recipe
from vitattack.train.run_folder import TrainedRun, finished_run
from vitattack.train.run_recipe import train

ROOT = Path(__file__).resolve().parents[2]


class Killed(BaseException):
    pass


class KillAt(Reporter):
    def __init__(self, step: int) -> None:
        self.at = step

    def step(self, row: Row) -> None:
        if row["step"] == self.at:
            raise Killed


class Hearing(Reporter):
    def __init__(self) -> None:
        self.warned: list[str] = []

    def warn(self, text: str) -> None:
        self.warned.append(text)


def state(done: TrainedRun) -> dict[str, Any]:
    found = Checkpoints(done.folder / "checkpoints").newest()
    assert found is not None
    content = found[1]
    content.pop("seconds")
    content["loop"]["tally"].pop("seconds", None)
    content["best"].pop("seconds")
    return content


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    """Uninterrupted: crop and flip, stochastic depth, N-FGSM with a warm-up, AWP, a mean, clipping."""
    return run(small(), tmp_path_factory.mktemp("whole"), save_every=4, log_every=1)


def comparable(done: TrainedRun) -> list[dict[str, float]]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in done.epochs]


def test_a_run_leaves_its_weights_numbers_and_how_they_came_about(whole: TrainedRun) -> None:
    assert [row["epoch"] for row in whole.epochs] == [1, 2]
    row = whole.epochs[1]
    assert {"loss", "clean", "robust", "one_step", "gap_median", "gap_p99", "qk_grad_min", "qk_grad_max"} <= set(row)
    assert row["eps"] == pytest.approx(4 / 255) and row["qk_grad_min"] > 0
    with (whole.folder / "epochs.csv").open() as stream:
        assert [float(r["loss"]) for r in csv.DictReader(stream)] == [r["loss"] for r in whole.epochs]
    steps = [json.loads(line) for line in (whole.folder / "steps.jsonl").read_text().splitlines()]
    assert [s["step"] for s in steps] == list(range(1, 2 * STEPS + 1))
    assert whole.result["weights"]["last"]["size"] == whole.last.stat().st_size
    assert whole.result["recipe"]["objective"] == "fgsm" and whole.result["provenance"]["versions"]["torch"]
    names = {path.name for path in (whole.folder / "checkpoints").iterdir()}
    assert names == {"step-000000024.pt", "step-000000028.pt"}


def test_kill_9_in_the_middle_of_an_epoch_changes_no_bit(whole: TrainedRun, tmp_path: Path) -> None:
    script = (
        "import os, signal, torch\n"
        "torch.set_num_threads(1)\n"
        "from tests.train.small_runs import run, small\n"
        "from vitattack.train.loop.reporter import Reporter\n"
        "class Suicide(Reporter):\n"
        "    def step(self, row):\n"
        "        if row['step'] == 19:\n"  # 3 steps after the last checkpoint, 5 into the second epoch
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        f"run(small(), {str(tmp_path)!r}, Suicide(), save_every=4, log_every=1)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    (folder,) = tmp_path.iterdir()
    assert Checkpoints(folder / "checkpoints").paths()[-1].name == "step-000000016.pt"
    again = run(small(), tmp_path, save_every=4, log_every=1)
    assert again.last.read_bytes() == whole.last.read_bytes()
    assert again.best.read_bytes() == whole.best.read_bytes()
    assert same(state(again), state(whole))
    assert comparable(again) == comparable(whole)
    assert (again.folder / "steps.jsonl").read_bytes() == (whole.folder / "steps.jsonl").read_bytes()


@pytest.mark.parametrize("at", [2, STEPS, STEPS + 1])
def test_it_does_not_matter_where_it_was_stopped(whole: TrainedRun, tmp_path: Path, at: int) -> None:
    with pytest.raises(Killed):
        run(small(), tmp_path, KillAt(at), save_every=4, log_every=1)
    again = run(small(), tmp_path, workers=0, save_every=5, log_every=1)
    assert again.last.read_bytes() == whole.last.read_bytes()


def test_a_finished_run_is_not_made_again_unless_asked(tmp_path: Path) -> None:
    recipe = small(epochs=1, hooks=(), validation=0)
    first = run(recipe, tmp_path)
    before = first.last.stat().st_mtime_ns
    assert run(recipe, tmp_path).last.stat().st_mtime_ns == before
    assert run(small(epochs=1, hooks=(), validation=0, summary="other words"), tmp_path).folder == first.folder
    again = run_fresh(recipe, tmp_path)
    assert again.last.stat().st_mtime_ns > before
    assert load_file(again.last).keys() == load_file(first.last).keys()
    assert same(load_file(again.last), load_file(first.last))


def run_fresh(recipe: Any, out: Path) -> TrainedRun:
    return train(recipe, out=out, device="cpu", threads=1, fresh=True)


def test_pieces_of_a_batch_add_up_to_the_batch(tmp_path: Path) -> None:
    plain = {"objective": "standard", "hooks": (), "epochs": 1, "optimiser": "sgd(lr=0.1)"}
    plain["arch_kwargs"] = SHAPE
    one, four = (run(small(accumulate=n, **plain), tmp_path) for n in (1, 4))
    assert one.folder != four.folder
    a, b = load_file(one.last), load_file(four.last)
    assert all(torch.allclose(a[name], b[name], atol=1e-5) for name in a)
    with pytest.raises(UsageError, match="does not divide into 1 processes times 3 pieces"):
        run(small(accumulate=3), tmp_path)


def test_zero_epochs_export_the_first_weights(tmp_path: Path) -> None:
    done = run(small(epochs=0), tmp_path)
    assert done.epochs == () and done.last.read_bytes() == done.best.read_bytes()
    begun = run(small(epochs=0, init=str(done.last), seed=5), tmp_path)
    assert same(load_file(begun.last), load_file(done.last))


def test_a_disk_that_fills_up_leaves_the_previous_checkpoint(
    whole: TrainedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync
    calls = 0

    def full(descriptor: int) -> None:
        nonlocal calls
        if "checkpoints" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            calls += 1
            if calls == 5:  # a file and its folder each: the third checkpoint
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(VitattackError, match="No space left.*still there: free some space and run the same command"):
        run(small(), tmp_path, save_every=4, log_every=1)
    monkeypatch.undo()
    (folder,) = tmp_path.iterdir()
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == ["step-000000004.pt", "step-000000008.pt"]
    assert run(small(), tmp_path, save_every=4, log_every=1).last.read_bytes() == whole.last.read_bytes()


def test_a_spoilt_checkpoint_is_passed_over(whole: TrainedRun, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        run(small(), tmp_path, KillAt(11), save_every=4, log_every=1)
    (folder,) = tmp_path.iterdir()
    newest = Checkpoints(folder / "checkpoints").paths()[-1]
    newest.write_bytes(newest.read_bytes()[:1000])
    hearing = Hearing()
    assert run(small(), tmp_path, hearing, log_every=1).last.read_bytes() == whole.last.read_bytes()
    assert hearing.warned == [f"{newest} cannot be read: going on from step-000000004.pt, before it"]


def test_one_checkpoint_is_kept_beside_a_spoilt_one_that_claims_to_be_newer(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep=1)
    (tmp_path / "step-000000016.pt").write_bytes(b"spoilt")
    (tmp_path / ".step-000000016.pt.tmp").write_bytes(b"left by a kill")
    for step in (12, 13):
        store.save(step, {"step": step})
    found = store.newest()
    assert found is not None and found[1]["step"] == 13
    assert {path.name for path in tmp_path.iterdir()} == {"step-000000013.pt", "step-000000016.pt"}
    many = Checkpoints(tmp_path, keep=4)
    for step in (14, 15, 17):
        many.save(step, {})
    assert [path.name[-5:-3] for path in store.paths()] == ["14", "15", "16", "17"]


@pytest.mark.parametrize("change", ["missing", "shape", "kind"])
def test_a_checkpoint_of_another_model_under_this_name_is_said_in_one_line(tmp_path: Path, change: str) -> None:
    recipe = small(epochs=1, hooks=(), validation=0)
    with pytest.raises(Killed):
        run(recipe, tmp_path, KillAt(5), save_every=4, log_every=1)
    (folder,) = tmp_path.iterdir()
    (path,) = Checkpoints(folder / "checkpoints").paths()
    content = torch.load(path, weights_only=True)
    if change == "missing":
        del content["watch"]
    elif change == "shape":
        content["loop"]["victim"]["model.head.weight"] = torch.zeros(3, 3)
    else:
        content["loop"] = "nonsense"
    torch.save(content, path)
    with pytest.raises(UsageError, match=r"does not fit the recipe \(.*start over with --fresh"):
        run(recipe, tmp_path)
    assert run_fresh(recipe, tmp_path).last.is_file()


def test_a_mistake_does_not_cost_a_finished_run(tmp_path: Path) -> None:
    done = run(small(epochs=0), tmp_path)
    with pytest.raises(UsageError, match="data folder"):
        train(small(epochs=0), out=tmp_path, data_dir=tmp_path / "gone", device="cpu", threads=1, fresh=True)
    assert done.last.is_file() and finished_run(done.folder) is not None


def test_workers_that_are_started_again_do_not_start_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = small(epochs=1, hooks=(), validation=0)
    with pytest.raises(Killed):
        run(recipe, tmp_path, KillAt(5), save_every=4, log_every=1)
    begun: list[int] = []

    class Beginning(Reporter):
        def begin(self, recipe: Recipe, folder: Path, step: int, total: int) -> None:
            begun.append(step)

    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    train(recipe, out=tmp_path, device="cpu", threads=1, fresh=True, reporter=Beginning())
    assert begun == [4]


def test_other_weights_in_the_file_of_init_are_another_run(tmp_path: Path) -> None:
    one, two = (run(small(epochs=0, seed=seed), tmp_path / "from") for seed in (1, 2))
    init = tmp_path / "init.safetensors"
    found = []
    for source in (one, two, one):
        init.write_bytes(source.last.read_bytes())
        found.append(run(small(epochs=0, init=str(init)), tmp_path / "to"))
    assert found[0].folder == found[2].folder != found[1].folder
    assert same(load_file(found[1].last), load_file(two.last))
    assert small(init="tiny-vit").key != run_key(small(init="tiny-vit"))  # its entry says a sha256
    assert small().key == run_key(small()) and small(init="timm:a.b").key == run_key(small(init="timm:a.b"))


def test_images_may_be_larger_than_the_model_where_augmentation_cuts_them(tmp_path: Path) -> None:
    shape = {**SHAPE, "img_size": 16, "patch_size": 4}
    recipe = small(epochs=1, arch_kwargs=shape, augment=("resized_crop(size=16)",), hooks=("logit_scale_log",))
    row = run(recipe, tmp_path).epochs[-1]
    assert row["logit_std"] > 0 and "robust" in row
    with pytest.raises(UsageError, match="gives images of"):
        run(small(arch_kwargs=shape), tmp_path)
    with pytest.raises(UsageError, match="32 x 32 px are smaller than the 64 px"):
        run(small(arch_kwargs={**SHAPE, "img_size": 64}, augment=("resized_crop(size=64)",)), tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "robust accuracy on 8 held-out"),
        ({"probe": 0}, "clean accuracy on 16 held-out"),
        ({"objective": "standard"}, "clean accuracy on 16 held-out"),
        ({"validation": 0}, "training loss"),
    ],
)
def test_a_result_says_what_its_best_weights_were_chosen_by(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    assert words in run(small(**{"epochs": 1, "hooks": (), **changes}), tmp_path).result["chosen_by"]


def test_checkpoints_with_code_in_them_are_not_run(tmp_path: Path) -> None:
    import pickle

    (tmp_path / "step-000000001.pt").write_bytes(pickle.dumps(run))
    with pytest.raises(UsageError, match="none of the checkpoints"):
        Checkpoints(tmp_path).newest()


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path) -> None:
    class Inner(Reporter):
        def step(self, row: Row) -> None:
            with pytest.raises(UsageError, match="another process is training in"):
                run(small(), tmp_path)
            raise Killed

    with pytest.raises(Killed):
        run(small(), tmp_path, Inner(), log_every=1)


def test_a_loss_that_is_not_finite_stops_the_run_at_once(tmp_path: Path) -> None:
    with pytest.raises(TrainingStopped, match="the loss of step .* lower the learning rate"):
        run(small(optimiser="sgd(lr=1e30)", hooks=(), objective="standard"), tmp_path)


def test_the_watch_knows_collapse_and_one_step_overfitting_from_slow_learning() -> None:
    watch = EarlyStop(10)
    rows = [(0.1, 0.1, 0.1), (0.3, 0.2, 0.22), (0.45, 0.3, 0.33), (0.5, 0.28, 0.36), (0.44, 0.2, 0.3)]
    for clean, robust, one_step in rows:
        assert watch.reason({"loss": 1.0, "clean": clean, "robust": robust, "one_step": one_step}) is None
    overfitted = {"loss": 1.0, "clean": 0.6, "robust": 0.02, "one_step": 0.7}
    assert "catastrophic overfitting: PGD-10 leaves 2.0% (once 30.0%)" in str(watch.reason(overfitted))
    never_won = [(0.6, 0.04, 0.1), (0.6, 0.01, 0.3)]
    for early, rows in (
        (EarlyStop(10), never_won),
        (EarlyStop(10, attacking=False), [(0.5, 0.3, 0.33), (0.8, 0, 0.3)]),
    ):
        for clean, robust, one_step in rows:
            assert early.reason({"loss": 1.0, "clean": clean, "robust": robust, "one_step": one_step}) is None
    from_the_start = {"loss": 1.0, "clean": 0.6, "robust": 0.01, "one_step": 0.5}
    assert "one step leaves 50.0% and PGD-10 1.0%, which never was above 10%" in str(
        EarlyStop(10).warning(from_the_start)
    )
    assert watch.warning(overfitted) is None and EarlyStop(10, attacking=False).warning(from_the_start) is None
    assert EarlyStop(10).warning({**from_the_start, "one_step": 0.2}) is None
    resumed = EarlyStop(10)
    resumed.load_state_dict(watch.state_dict())
    assert resumed.reason(overfitted) == watch.reason(overfitted)
    assert "collapsed from 50.0% to 11.0%" in str(EarlyStop(10, clean=0.5).reason({"loss": 1.0, "clean": 0.11}))
    assert "NaN" in str(watch.reason({"loss": float("nan")}))


@pytest.mark.parametrize(("hooks", "heard"), [(("eps_warmup(2)",), 1), ((), 3)])
def test_overfitting_from_the_first_epoch_is_warned_of_once_the_budget_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hooks: tuple[str, ...], heard: int
) -> None:
    monkeypatch.setattr(early_stop, "LEAST", 1.0)
    monkeypatch.setattr(early_stop, "GAP", -1.0)
    hearing = Hearing()
    run(small(epochs=3, hooks=hooks), tmp_path, hearing)
    assert len(hearing.warned) == heard and all("lie from the start" in text for text in hearing.warned)


class Collapsed(EarlyStop):
    def reason(self, numbers: dict[str, float]) -> str | None:
        return "it went wrong" if numbers["epoch"] == 2 else None


def test_a_stopped_run_keeps_its_best_weights_and_stops_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitattack.train.loop.session.EarlyStop", Collapsed)
    for _ in range(2):
        with pytest.raises(
            TrainingStopped, match=r"stopped after epoch 2: it went wrong \(the best weights so far are"
        ):
            run(small(epochs=3), tmp_path)
    (folder,) = tmp_path.iterdir()
    assert (folder / "best.safetensors").is_file() and not (folder / "result.json").exists()

    hearing = Hearing()
    assert len(run(small(epochs=3), tmp_path, hearing, keep_going=True).epochs) == 3
    assert hearing.warned == ["it went wrong"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hooks": ("emma(0.9)",)}, "unknown hook 'emma': did you mean ema"),
        ({"arch": "small:tiny_vit_33"}, "did you mean tiny_vit_32"),
        ({"init": "tiny-vit"}, "does not fit the architecture"),
        ({"init": "nowhere"}, "correct init"),
        ({"batch_size": 1000}, "batch"),
        ({"validation": 500}, "lower validation"),
        ({"arch_kwargs": {**SHAPE, "img_size": 64}}, "takes 64 px"),
        ({"normalize": "cifar"}, "normalize 'cifar' is not understood"),
        ({"threat": "spatial"}, "training is against linf or l2"),
        ({"data": "folder:/nowhere"}, "nowhere"),
    ],
)
def test_bad_recipes_fail_before_the_first_step(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run(small(**changes), tmp_path)


def test_an_empty_data_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="empty"):
        run(small(data=f"folder:{tmp_path / 'empty'}"), tmp_path / "out")


def test_missing_trackers_are_said_in_the_first_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitattack.train.options.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="--log wandb needs the package wandb: pip install wandb"):
        run(small(), tmp_path, log=("wandb",))
    with pytest.raises(UsageError, match="unknown tracker 'wand': did you mean wandb"):
        run(small(), tmp_path, log=("wand",))


def test_training_leaves_the_callers_generator_alone(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    run(small(epochs=1), tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_affine_toy_is_no_transformer_and_has_no_gaps() -> None:
    from vitattack.train.loop.probes import AttentionProbe

    victim = affine()
    assert AttentionProbe(torch.rand(2, 3, 1, 1), torch.tensor([0, 1])).measure(victim) == {}


def test_weights_from_before_the_first_event_are_registered_without_an_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scales of an XCiT do not fold, but for those of one that it begins with."""
    monkeypatch.setenv("VITATTACK_HOME", str(tmp_path / "home"))
    sizes = {"img_size": 32, "depth": 1, "embed_dim": 16, "num_heads": 2}
    xcit = small(arch="xcit_nano_12_p8_224", arch_kwargs=sizes, hooks=("aas_at(every=1, batches=1, drop=1.0)",))
    for better, adapter in ((-1, None), (1, "attention-scales")):
        monkeypatch.setattr(Session, "_rank", lambda self, row, sign=better: (sign * row["epoch"], 0.0))
        done = run(xcit, tmp_path / str(better))
        assert done.result["best"]["epoch"] == (1 if better < 0 else 2)
        assert done.result["weights"]["last"]["adapter"] == "attention-scales"
        assert done.result["adapter"] == adapter
        entry = register_best(done, f"mine{better}")
        assert entry.adapter == (() if adapter is None else (adapter,))
