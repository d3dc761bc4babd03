"""Random models: recognised before the attack, counted by expectation, and fooled only in most of their draws."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.conftest import tiny_vit, toy_pictures
from vitattack.attacks.autoattack.autoattack import autoattack
from vitattack.core.errors import UsageError
from vitattack.evaluation.evaluate import evaluate
from vitattack.evaluation.transfer.study import transfer
from vitattack.models.victim import Victim
from vitattack.records.result import Evaluation

X = toy_pictures(12)
Y = tiny_vit()(X).argmax(1)
SETTINGS = {"threads": 1, "batch_size": 8}


class Noisy(nn.Module):
    """The toy transformer behind a random change of its images."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.change = tiny_vit().model, change

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(self.change(x))
        return out


def additive(x: Tensor) -> Tensor:
    return x + 0.05 * torch.randn_like(x)


def dropout(x: Tensor) -> Tensor:
    return nn.functional.dropout(x, 0.05, training=True)


def shifted(x: Tensor) -> Tensor:
    """One random crop for the whole batch, as random resizing and padding is usually written."""
    size = int(torch.randint(28, 33, ()))
    small = nn.functional.interpolate(x, size=size, mode="bilinear")
    return nn.functional.pad(small, (0, 32 - size, 0, 32 - size))


def by_numpy(x: Tensor) -> Tensor:
    return x + 0.05 * torch.from_numpy(np.random.standard_normal(x.shape)).to(x)


def by_python(x: Tensor) -> Tensor:
    return x * (1 + 0.1 * random.gauss(0, 1))


def run(model: nn.Module, attack: str = "pgd(steps=3)", **more: object) -> Evaluation:
    return evaluate(model, attack, data=(X, Y), **{**SETTINGS, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("passes", [349, 450])
@pytest.mark.parametrize("blind", [False, True])
def test_a_budget_holds_the_draws_of_a_random_model(passes: int, blind: bool) -> None:
    def change(x: Tensor) -> Tensor:
        return additive(x.detach() if blind else x)

    torch.manual_seed(1)
    records = run(Noisy(change), f"auto(passes={passes}, long=20)", threat="linf:0.1/255").results[0].records
    assert records[0].evidence["draws"] == 11
    assert passes / 3 < max(record.forwards + record.backwards for record in records) <= passes


def test_a_budget_that_pays_for_no_stage_on_a_random_model_is_refused() -> None:
    with pytest.raises(UsageError, match="348 passes pays for no stage of auto on a random model: give at least 349"):
        run(Noisy(additive), "auto(passes=348)")


@pytest.mark.parametrize("change", [additive, dropout, shifted, by_numpy, by_python])
def test_a_random_model_is_recognised_and_counted_by_expectation(change: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(1)
    found = run(Noisy(change))
    (result,) = found.results
    assert result.fragile == 0
    (doubt,) = [doubt for doubt in result.doubts if "the model is random: two forwards" in doubt]
    assert 'next: vitattack.evaluate(model, "eot(pgd(steps=3))"' in doubt and "rounding" not in doubt
    assert not any("batch size" in doubt for doubt in result.doubts)
    k = result.json()["draws"]
    attacked = [r for r in result.records if "right" in r.evidence]
    for record in result.records:
        assert record.evidence["draws"] == k == len(str(record.evidence["clean_right"]))
    for record in attacked:
        right = str(record.evidence["right"]).count("1")
        assert (record.status == "fooled") == (record.clean == record.label and 2 * right < k)
    shares = [str(r.evidence.get("right", r.evidence["clean_right"])).count("1") / k for r in result.records]
    assert found.clean.accuracy == pytest.approx(
        sum(str(r.evidence["clean_right"]).count("1") for r in result.records) / k / 12
    )
    assert result.robust.accuracy == pytest.approx(sum(shares) / 12)
    assert result.robust.low < result.robust.accuracy < result.robust.high
    torch.manual_seed(2)
    np.random.seed(3)
    random.seed(4)
    again = run(Noisy(change))
    assert again.results[0].records == result.records, "the same seed, another state of the process"


def test_another_seed_is_other_noise() -> None:
    one, other = (run(Noisy(additive), "random", seed=seed).results[0].records for seed in (0, 1))
    assert [r.evidence["clean_right"] for r in one] != [r.evidence["clean_right"] for r in other]


def test_expectations_are_those_of_many_draws() -> None:
    model = Noisy(additive)
    found = run(model, "random")
    with torch.no_grad():
        many = torch.stack([model(X).argmax(1) == Y for _ in range(150)]).double().mean()
    assert found.clean.low < float(many) < found.clean.high
    assert abs(found.clean.accuracy - float(many)) < 0.08


def test_one_lucky_draw_does_not_end_the_attack() -> None:
    """What the attack claims has survived five draws, so that most claims survive the judge."""
    (result,) = run(Noisy(additive), "pgd(steps=8)").results
    claims = [r for r in result.records if r.first_fooled >= 0]
    assert len(claims) >= 3
    assert sum(r.status == "fooled" for r in claims) >= 0.8 * len(claims)
    (one,) = run(Noisy(additive), "eot(pgd(steps=8), n=4)").results
    assert not any("next: vitattack.evaluate(model" in doubt for doubt in one.doubts if "random" in doubt)


def test_a_model_that_is_random_on_some_inputs() -> None:
    """Its candidates are random, its clean images are not."""

    class OnSome(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = tiny_vit().model
            self.register_buffer("known", X)

        def forward(self, x: Tensor) -> Tensor:
            strange = (x[:, None] - self.known).abs().flatten(2).amax(2).amin(1) > 0.01  # type: ignore[operator]
            noise = 0.1 * torch.randn(x.shape, device=x.device) * strange[:, None, None, None]
            out: Tensor = self.inner(x + noise)
            return out

    (result,) = run(OnSome(), "pgd(steps=5)").results
    drawn = [r for r in result.records if "draws" in r.evidence]
    assert drawn and not any("clean_right" in r.evidence for r in drawn)
    assert result.fragile == 0
    assert any("random on some inputs" in doubt and "eot(" in doubt for doubt in result.doubts)


class Centred(nn.Module):
    """Logits relative to their mean over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny_vit().model

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out - 0.5 * out.mean(0)


def test_answers_that_depend_on_the_batch_are_another_cause() -> None:
    (result,) = run(Centred()).results
    (doubt,) = [doubt for doubt in result.doubts if "other images of its batch" in doubt]
    assert "--batch-size 1" in doubt
    assert not any("random" in doubt or "not reproduced at another batch size" in doubt for doubt in result.doubts)
    assert "draws" not in result.json()
    alone = evaluate(Centred(), "pgd(steps=1)", data=(X[:4], Y[:4]), threads=1, batch_size=1)
    assert not any("of its batch" in doubt for doubt in alone.doubts)


def test_deterministic_models_have_the_records_they_had() -> None:
    (result,) = run(tiny_vit().model, "pgd(steps=4)").results
    assert result.doubts == () and "draws" not in result.json()
    for record in result.records:
        assert record.evidence.keys() == {"margin", "zero_grad"}
        steps = record.first_fooled if record.status == "fooled" else 4
        assert record.forwards == 3 + steps + (record.status == "fooled")
        assert record.backwards in (steps, steps + 1)  # those that leave a batch are part of its last pass


def test_noise_that_no_seed_reaches_is_named() -> None:
    own = torch.Generator().manual_seed(0)
    (result,) = run(Noisy(lambda x: x + 0.05 * torch.randn(x.shape, generator=own)), "random").results
    assert any("generator of its own" in doubt for doubt in result.doubts)


def test_a_run_that_is_resumed_and_one_in_shards_draw_the_same(tmp_path: Path) -> None:
    whole = run(Noisy(additive), out=tmp_path / "whole")
    run(Noisy(additive), out=tmp_path / "parts", shard=(1, 2))
    both = run(Noisy(additive), out=tmp_path / "parts", shard=(0, 2))
    assert both.results[0].records == whole.results[0].records
    torch.rand(5)
    again = run(Noisy(additive), out=tmp_path / "whole")
    assert again.clean == whole.clean and again.results[0].robust == whole.results[0].robust


def test_auto_and_its_second_pass_meet_a_random_model(monkeypatch: pytest.MonkeyPatch) -> None:
    cheap = {"QUERIES": 3, "STEPS": 2, "autoattack": lambda ball: autoattack(ball, steps=2, queries=3)}
    for name, value in cheap.items():
        monkeypatch.setattr(f"vitattack.attacks.auto.assurance.{name}", value)
    (result,) = run(Noisy(additive), "auto(steps=2, k=2, long=4)", threat="linf:1/255").results
    assert result.fragile == 0 and result.json()["draws"]
    assert any(r.pass_number > 1 for r in result.records)
    assert all("right" in r.evidence for r in result.records if r.pass_number > 1)
    assert any('"eot(apgd)"' in doubt for doubt in result.doubts)


def test_transfer_from_and_to_a_random_model() -> None:
    noisy = Victim(Noisy(additive), name="noisy", num_classes=10, input_size=32)
    plain = Victim(tiny_vit().model, name="plain", num_classes=10, input_size=32)
    matrix = transfer([noisy, plain], attack="pgd(steps=3)", data=(X, Y), **SETTINGS)  # type: ignore[arg-type]
    onto = matrix.cell("plain", "noisy")
    for cell in (onto, matrix.cell("noisy", "noisy")):
        assert cell.result.json()["draws"] and cell.result.fragile == 0
        assert cell.drop.accuracy == pytest.approx(matrix.clean["noisy"].accuracy - cell.accuracy.accuracy)
        assert cell.success.low < cell.success.accuracy < cell.success.high
    assert "draws" not in matrix.cell("noisy", "plain").result.json()
    assert any("noisy" in doubt and "the model is random" in doubt for doubt in matrix.doubts)
    assert not noisy.is_random and "known_random" not in vars(noisy)
    assert onto.result.clean == matrix.white_box["noisy"].clean


def test_the_worst_case_over_attacks_is_an_expectation_too() -> None:
    both = evaluate(Noisy(additive), ["pgd(steps=4)", "fgsm"], data=(X, Y), **SETTINGS)  # type: ignore[arg-type]
    assert both.worst_case.accuracy <= min(result.robust.accuracy for result in both.results) + 0.1
    assert both.results[0].clean == both.results[1].clean


@pytest.mark.usefixtures("few_queries")
def test_auto_averages_the_gradients_of_a_random_model() -> None:
    """The gradient of one draw sees a tenth of the pixels; the mean of four sees what the model's mean depends on."""
    keeping = Noisy(lambda x: nn.functional.dropout(x, 0.9, training=True))
    settings = {**SETTINGS, "threat": "linf:0.02", "data": (X, keeping.inner(X).argmax(1))}
    (found,) = evaluate(keeping, "auto(steps=2, k=2, long=4)", **settings).results
    left = [record for record in found.records if record.status == "robust"]
    stages = next(section for section in found.sections if section.name == "stages").content
    assert "averaged" in stages
    # 2 steps towards 2 classes: 3 forwards and 2 backwards of 4 answers, and 4 to rank the classes
    assert left and all(r.evidence["spent averaged"] >= 2 * (3 + 2) * 4 + 4 for r in left)
    assert any("averaged over 4 answers" in doubt for doubt in found.doubts)
    assert not any("promise" in doubt for doubt in found.doubts)
