"""Models that answer with NaN: they have no accuracy, are never the best, and end the run with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import tiny_vit, toy_pictures
from tests.train.small_runs import KillAt, Killed, run, small
from vitattack.core.errors import VitattackError
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.victim import Victim
from vitattack.threats.lp import LpBall
from vitattack.train.data.batch import Batch
from vitattack.train.distributed import SINGLE_PROCESS
from vitattack.train.hooks.aas_at import AasAt
from vitattack.train.loop.early_stop import TrainingStopped
from vitattack.train.loop.epoch_probes import AccuracyProbe
from vitattack.train.loop.reporter import Reporter, Row
from vitattack.train.loop.training_loop import TrainingLoop

ONE_STEP = {"batch_size": 112, "epochs": 1, "hooks": (), "objective": "standard", "optimiser": "sgd(lr=1e38)"}


class Broken(nn.Module):
    """Answers NaN wherever the first pixel is bright."""

    def forward(self, x: Tensor) -> Tensor:
        out = torch.zeros(len(x), 4)
        out[:, 1] = 1
        out[x[:, 0, 0, 0] > 0.5] = torch.nan
        return out


class Told(Reporter):
    def __init__(self) -> None:
        self.best: list[bool] = []

    def epoch(self, row: Row, best: bool) -> None:
        self.best.append(best)


def test_nan_is_not_right_in_a_probe() -> None:
    victim = Victim(Broken(), name="broken", num_classes=4, input_size=1)
    x = torch.tensor([0.0, 0.0, 1.0, 1.0]).view(4, 1, 1, 1).expand(4, 3, 1, 1)
    probe = AccuracyProbe(x, torch.tensor([1, 0, 1, 0]), LpBall("linf", 0.0), 0)
    assert probe.measure(victim, SINGLE_PROCESS) == {"clean": 0.25, "not_finite": 0.5}


def test_nan_is_not_right_for_the_guard_of_aas_at(monkeypatch: pytest.MonkeyPatch) -> None:
    victim = tiny_vit()
    layers = attention_layers(victim, victim.grey())
    batch = Batch(toy_pictures(4), torch.zeros(4, dtype=torch.long))
    monkeypatch.setattr(type(victim), "forward", lambda self, x: torch.full((len(x), 10), torch.nan))
    assert AasAt()._accuracy(victim, layers, torch.ones(len(layers)), [batch]) == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "held-out images with NaN or infinity"),
        ({"validation": 0, "probe": 0}, "with NaN or infinity"),
        ({"hooks": ("ema(0.9)",), "keep": True}, "NaN or infinit"),
    ],
)
def test_a_model_that_breaks_in_its_last_step_ends_the_run_and_is_not_exported(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    changes = dict(changes)
    keep_going = bool(changes.pop("keep", False))
    told = Told()
    with pytest.raises(TrainingStopped, match=f"stopped after epoch 1: .*{words}.*lower the learning rate"):
        batch = {"batch_size": 128} if changes.get("validation") == 0 else {}
        run(small(**{**ONE_STEP, **batch, **changes}), tmp_path, told, keep_going=keep_going)
    assert told.best == [False]
    (folder,) = tmp_path.iterdir()
    names = {path.name for path in folder.iterdir()}
    assert not names & {"best.safetensors", "last.safetensors", "result.json"} and "epochs.jsonl" in names


def test_a_model_that_breaks_later_leaves_the_best_weights_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = small(hooks=(), epochs=3, objective="standard")
    with pytest.raises(Killed):
        run(recipe, tmp_path, KillAt(15), log_every=1)
    (folder,) = tmp_path.iterdir()
    before = (folder / "best.safetensors").read_bytes()
    real = TrainingLoop._end_epoch

    def spoil(loop: TrainingLoop) -> None:
        if loop.run.epoch == 1:
            with torch.no_grad():
                next(iter(loop.run.plain.parameters())).fill_(torch.inf)
        real(loop)

    monkeypatch.setattr(TrainingLoop, "_end_epoch", spoil)
    with pytest.raises(TrainingStopped, match=r"stopped after epoch 2: .*the best weights so far are"):
        run(recipe, tmp_path)
    assert (folder / "best.safetensors").read_bytes() == before


def test_weights_that_float16_cannot_hold_are_not_exported_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = TrainingLoop._end_epoch

    def enlarge(loop: TrainingLoop) -> None:
        with torch.no_grad():
            loop.run.plain.model.get_parameter("head.bias").fill_(1e5)
        real(loop)

    monkeypatch.setattr(TrainingLoop, "_end_epoch", enlarge)
    with pytest.raises(VitattackError, match=r"head.bias .*float16.*export=fp32"):
        run(small(hooks=(), epochs=1, objective="standard", export="fp16"), tmp_path)
    (folder,) = tmp_path.iterdir()
    assert not (folder / "best.safetensors").exists()
