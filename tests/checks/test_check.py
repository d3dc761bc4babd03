"""`check`: an honest model holds, a planted one does not or cannot be told, and a claim is judged on the images."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import ask_square_little, tiny_vit, toy_pictures
from vitattack.checks import check as check_module
from vitattack.checks.check import Checked, _worst_case, check
from vitattack.checks.items import of_attack, of_gradient
from vitattack.core.errors import UsageError
from vitattack.records.stats import Verdict
from vitattack.report.check import details, tables

X = toy_pictures(8)
Y = tiny_vit()(X).argmax(1)
SETTINGS = {"threat": "linf:0.02", "threads": 1, "data": (X, Y)}


@pytest.fixture(autouse=True, scope="module")
def short_black_box() -> object:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(of_attack, "BLACK_BOX", "square(queries=60)")
        patched.setattr(of_gradient, "POINTS", 10)
        ask_square_little(patched)
        yield


class Quantised(nn.Module):
    def __init__(self, levels: int) -> None:
        super().__init__()
        self.model, self.levels = tiny_vit().model, levels

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.model((x * self.levels).round() / self.levels)
        return out


class Sealed(nn.Module):
    """A model behind `no_grad`, that no gradient attack can be asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.model = tiny_vit().model

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            out: Tensor = self.model(x)
        return out


@pytest.fixture(scope="module")
def honest() -> Checked:
    return check(tiny_vit().model, **SETTINGS)


def test_an_honest_model_holds(honest: Checked) -> None:
    failed = [item.name for item in honest.items if item.decisive and item.passed is False]
    assert failed == [] and honest.verdict.word == "holds"
    asked = {item.name for item in honest.items if item.passed is not None}
    assert {"gradient fidelity", "certificate", "black box", "budgets", "fp64", "attention softmax"} <= asked
    (scaling,) = (item for item in honest.items if item.name == "attention scaling")
    assert scaling.figure == "no other images to learn scales from" and scaling.passed is None
    assert honest.certificate.found[-1].found == honest.certificate.tested >= 7
    assert honest.best.correct <= honest.auto.robust.correct


def test_every_row_has_a_figure_a_threshold_and_a_source(honest: Checked) -> None:
    for item in honest.items:
        assert item.figure and item.threshold and item.source and item.asks.endswith("?")
        assert item.next.startswith(("vitattack ", "vitattack.evaluate(model, ", "vitattack.diagnose(model)")) or (
            not item.next and not item.decisive
        )
    (shown,) = tables(honest)
    assert [row[0] for row in shown.rows] == [item.name for item in honest.items]
    assert shown.notes[-1] == honest.line and honest.line.startswith("holds: ")
    assert len(details(honest).rows) == len(honest.items)
    assert json.loads(json.dumps(honest.json()))["verdict"] == "holds"


def test_a_check_has_the_name_it_is_listed_by(honest: Checked) -> None:
    assert [item.name for item in honest.items] == [*check_module.CHECKS, "certificate"]


def test_what_any_check_breaks_counts(honest: Checked) -> None:
    standing = [r.index for r in honest.auto.records if r.status == "robust"]
    fell = Verdict("fooled", fragile=False)
    subject = SimpleNamespace(verdicts=[{standing[0]: fell}, {standing[0]: fell, standing[1]: fell}])
    assert _worst_case(honest.auto, subject).correct == honest.auto.robust.correct - 2  # type: ignore[arg-type]
    assert _worst_case(honest.auto, SimpleNamespace(verdicts=[])) == honest.auto.robust  # type: ignore[arg-type]


def test_scaled_attention_is_tried_with_images_that_are_not_attacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_module, "FEW", 4)
    monkeypatch.setattr(check_module, "CHECKS", {"attention scaling": of_attack.attention_scaling})
    (scaling, _) = check(tiny_vit().model, **SETTINGS).items
    assert scaling.passed and "by random scales" in scaling.figure and scaling.next
    linear = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))
    (scaling, _) = check(linear, **{**SETTINGS, "data": (X, linear(X).argmax(1))}).items
    assert scaling.passed is None and scaling.figure == "no attention to scale"


def test_a_claim_far_above_the_examples_does_not_hold() -> None:
    torch.manual_seed(0)
    linear = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(48, 10))
    checked = check(linear, claim=1.0, **{**SETTINGS, "threat": "linf:0.1", "data": (X, linear(X).argmax(1))})
    assert checked.verdict.word == "does not hold" and "100.0 % claimed" in checked.line


def test_a_quantised_model_does_not_hold_by_its_plain_gradients() -> None:
    checked = check(Quantised(8), **SETTINGS)
    failed = {item.name for item in checked.items if item.decisive and item.passed is False}
    assert "gradient fidelity" in failed and checked.verdict.word != "holds"
    plain = {each.attack: each.found for each in checked.certificate.found}
    assert plain["pgd(steps=20)"] < plain["auto"]


def test_a_model_without_gradients_cannot_be_told(tmp_path: Path) -> None:
    checked = check(Sealed(), **{**SETTINGS, "data": (X[:4], Y[:4]), "out": tmp_path})
    assert checked.verdict.word == "cannot tell"
    assert any(item.figure == "the model has no gradient" for item in checked.items)
    assert [item.name for item in checked.items] == [*check_module.CHECKS, "certificate"]
    assert (tmp_path / "check").is_dir()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"claim": 56.1}, "write 0.561"),
        ({"claim": "5/128"}, "--limit 128"),
        ({"threat": "spatial:1px,1deg"}, "linf:8/255"),
        ({"threat": "linf:0"}, "above zero"),
        ({"shard": (0, 2)}, "drop the shard"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check(tiny_vit().model, **{**SETTINGS, **given})  # type: ignore[arg-type]
