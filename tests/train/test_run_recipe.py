"""Runs end in the same bits whether they were killed, resumed, or left alone."""

from __future__ import annotations

import csv
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

from tests.train.small_runs import SHAPE, STEPS, KillAt, Killed, affine, run, run_fresh, small
from vitattack.core.errors import UsageError
from vitattack.train.export import register_best
from vitattack.train.loop.checkpoints import Checkpoints
from vitattack.train.loop.initial_weights import run_key
from vitattack.train.loop.reporter import Reporter, Row
from vitattack.train.loop.session import Session
from vitattack.train.recipe import Recipe
from vitattack.train.run_folder import TrainedRun, finished_run
from vitattack.train.run_recipe import train

ROOT = Path(__file__).resolve().parents[2]


def state(done: TrainedRun) -> dict[str, Any]:
    newest = Checkpoints(done.folder / "checkpoints").newest()
    assert newest is not None
    content = newest[1]
    content.pop("seconds")
    content["loop"]["tally"].pop("seconds", None)
    content["best"].pop("seconds")
    for row in content["epochs"]:
        row.pop("seconds")
    return content


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


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


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path) -> None:
    class Inner(Reporter):
        def step(self, row: Row) -> None:
            with pytest.raises(UsageError, match="another process is training in"):
                run(small(), tmp_path)
            raise Killed

    with pytest.raises(Killed):
        run(small(), tmp_path, Inner(), log_every=1)


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
        ({"threat": "spatial"}, "training takes linf or l2"),
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
    monkeypatch.setattr("vitattack.train.session_options.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="--log wandb needs the package wandb: pip install wandb"):
        run(small(), tmp_path, log=("wandb",))
    with pytest.raises(UsageError, match="unknown tracker 'wand': did you mean wandb"):
        run(small(), tmp_path, log=("wand",))


def test_training_leaves_the_callers_generator_alone(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    run(small(epochs=1), tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_affine_toy_is_no_transformer_and_has_no_gaps() -> None:
    from vitattack.train.loop.epoch_probes import AttentionProbe

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
