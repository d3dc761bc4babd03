"""Models without gradients: one line for attacks that need them, and `auto` on logits alone."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms.functional import pil_to_tensor, to_pil_image

import vitattack
from tests.conftest import tiny_vit, toy_pictures
from vitattack.attacks.auto import blind
from vitattack.evaluation.evaluate import evaluate
from vitattack.models.lost_gradients import NoGradient

SETTINGS: dict[str, Any] = {"threat": "linf:0.01", "batch_size": 4, "threads": 1}


class Jpeg(nn.Module):
    """Compression by PIL, as a defence does it."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.compressed(image) for image in x])

    def compressed(self, image: Tensor) -> Tensor:
        file = io.BytesIO()
        to_pil_image(image.detach().clamp(0, 1)).save(file, "JPEG", quality=75)
        return pil_to_tensor(Image.open(file)).float() / 255


class Rounded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (16 * x).round() / 16


class Sealed(nn.Module):
    """A model whose whole forward is out of autograd's sight: there is no way around."""

    def __init__(self) -> None:
        super().__init__()
        self.model = defended(Jpeg())

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            logits: Tensor = self.model(x)
        return logits


def defended(step: nn.Module) -> nn.Module:
    return nn.Sequential(step, tiny_vit().model).eval()


def own(model: nn.Module, n: int = 4) -> tuple[Tensor, Tensor]:
    x = toy_pictures(n)
    with torch.no_grad():
        return x, model(x).argmax(1)


@pytest.mark.parametrize(
    "attack",
    [
        "pgd(steps=2)",
        "apgd(steps=3)",
        "cw_l2(steps=2, searches=1)",
        "fab(steps=2)",
        "restarts(2, pgd(steps=2))",
        "scale(pgd(steps=2), c=0.5)",
        "pgd(steps=2, start=odi)",
    ],
)
def test_an_attack_that_needs_gradients_ends_in_one_line(attack: str) -> None:
    model = defended(Jpeg())
    threat = "l2:0.5" if "cw" in attack else "linf:0.01"
    with pytest.raises(NoGradient) as said:
        evaluate(model, attack, data=own(model), **{**SETTINGS, "threat": threat})
    line = str(said.value)
    assert "\n" not in line and "the graph is cut in '0' (Jpeg)" in line and "square" in line and "auto" in line
    with pytest.raises(NoGradient, match="cut in '0'"):
        vitattack.attack(attack, threat=threat)(model, *own(model))


def test_attacks_without_gradients_run() -> None:
    model = defended(Jpeg())
    (found,) = evaluate(model, "square(queries=20)", data=own(model), **SETTINGS).results
    assert found.n == 4 and not any("gradient" in doubt for doubt in found.doubts)


def test_auto_goes_on_with_logits_alone_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blind, "QUERIES", 40)
    model = Sealed()
    data = own(model)
    (found,) = evaluate(model, "auto(steps=2, k=2, long=4)", data=data, **SETTINGS).results
    assert found.robust.correct < 4
    assert any("the graph is cut" in doubt and "no_grad" in doubt for doubt in found.doubts)
    assert any("without gradients" in doubt and "upper bound" in doubt for doubt in found.doubts)
    stages = next(section for section in found.sections if section.name == "stages").content
    assert stages["blind random"] + stages["blind square"] == 4 - found.robust.correct
    survivors = [record for record in found.records if record.status == "robust"]
    # beside noise and queries: verdicts, a look at gradients, and one for a way around
    assert all(10 + 41 <= record.forwards <= 10 + 41 + 8 + 3 and record.backwards == 0 for record in survivors)
    again = evaluate(model, "auto(steps=2, k=2, long=4)", data=data, **SETTINGS).results[0]
    assert [r.status for r in again.records] == [r.status for r in found.records]


@pytest.mark.usefixtures("few_queries")
def test_auto_goes_around_what_cuts_the_gradient() -> None:
    """Substitute gradients break most, and Square, which is asked in the end, some of the others."""
    model = defended(Jpeg())
    data = own(model, 8)
    (found,) = evaluate(model, "auto(steps=2, k=2, long=4)", data=data, **SETTINGS).results
    stages = next(section for section in found.sections if section.name == "stages").content
    assert stages["straight-through"] >= 3
    assert stages["straight-through"] + stages["square"] == 8 - found.robust.correct
    assert all(record.evidence["no_gradient"] for record in found.records)  # so that no second pass asks for one
    assert any("straight-through around front of model.1" in doubt for doubt in found.doubts)
    assert any("not do what its gradients promise" in doubt for doubt in found.doubts)


@pytest.mark.parametrize("budget", [60, 90])
def test_a_budget_also_limits_passes_without_gradients(budget: int) -> None:
    model = defended(Jpeg())
    attack = f"auto(steps=2, k=2, long=4, passes={budget})"
    (found,) = evaluate(model, attack, data=own(model), **SETTINGS).results
    assert max(record.forwards + record.backwards for record in found.records) <= budget


def test_auto_in_bfloat16_goes_on_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blind, "QUERIES", 5)
    model = Sealed()
    (found,) = evaluate(model, "auto(steps=2, k=2)", data=own(model), precision="bf16-search", **SETTINGS).results
    assert any("the graph is cut" in doubt for doubt in found.doubts)


def test_a_gradient_that_is_zero_everywhere_gets_other_advice_than_a_loss_that_saturates() -> None:
    rounded = defended(Rounded())
    (found,) = evaluate(rounded, "pgd(steps=2)", data=own(rounded), **SETTINGS).results
    (doubt,) = [doubt for doubt in found.doubts if "exactly zero" in doubt]
    assert "becomes zero in '0' (Rounded)" in doubt and "no loss helps" in doubt and "dlr" not in doubt


class NoHalf(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if (x @ x.transpose(2, 3)).dtype == torch.bfloat16:
            raise RuntimeError("no kernel for bfloat16")
        return x


class NoDouble(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.float()


def test_a_model_that_cannot_run_in_bfloat16_is_searched_in_float32() -> None:
    model, attack = defended(NoHalf()), "auto(steps=2, k=2, passes=60)"
    found, plain = (
        evaluate(model, attack, data=own(model), precision=precision, **SETTINGS)
        for precision in ("bf16-search", "fp32")
    )
    assert [r.status for r in found.results[0].records] == [r.status for r in plain.results[0].records]


def test_a_model_that_cannot_run_in_float64_is_refused_by_fp64_in_one_line() -> None:
    model = defended(NoDouble())
    with pytest.raises(vitattack.UsageError, match="cannot run in float64") as said:
        evaluate(model, "fp64(pgd(steps=2))", data=own(model), **SETTINGS)
    assert "\n" not in str(said.value)


def test_a_diagnosis_ends_in_one_line() -> None:
    model = defended(Jpeg())
    with pytest.raises(NoGradient, match="cut in '0'"):
        vitattack.diagnose(model, own(model), threads=1)


def test_a_model_that_writes_into_its_images_is_refused() -> None:
    class InPlace(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sub_(0.5).flatten(1)[:, :10]

    with pytest.raises(vitattack.UsageError, match="changes its input in place"):
        evaluate(InPlace(), "pgd", data=(toy_pictures(2), torch.zeros(2, dtype=torch.long)), **SETTINGS)
