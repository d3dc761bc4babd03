"""Early stops: collapse and catastrophic overfitting, told from slow learning."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.train.small_runs import Hearing, run, small
from vitattack.train.loop import early_stop
from vitattack.train.loop.early_stop import EarlyStop, TrainingStopped


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
    assert len(hearing.warned) == heard and all("mislead from the start" in text for text in hearing.warned)


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
