"""Crafted on one model, shown to another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import tiny_vit, toy_pictures
from tests.models.hugging_face.folders import changed, save_vit
from vitattack import attack
from vitattack.attacks import attack_text
from vitattack.attacks.black_box.transfer import carried, resized, source_digest, source_model
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.data import load_data
from vitattack.data.formats.row_sources import TensorSource
from vitattack.data.imagenet.classes import single_classes
from vitattack.data.imagenet.restricted_victim import restrict_to_classes
from vitattack.evaluation.evaluate import evaluate
from vitattack.models.passes import counting_passes
from vitattack.models.victim import Victim
from vitattack.models.zoo.load import load_model
from vitattack.text.class_lists import CIFAR10
from vitattack.threats.base import parse_threat
from vitattack.threats.lp import LpBall

SOURCE = "tiny-vit-standard"
TEXT = f'transfer("{SOURCE}", pgd(steps=3, stop=never))'
LINF = parse_threat("linf:8/255")
Images = tuple[Tensor, Tensor]


def rng(n: int) -> SampleRng:
    return SampleRng(0, tuple(range(n)))


class Small(nn.Module):
    """Ten classes from 16 px images by a fixed random map."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.randn(10, 3 * 16 * 16, generator=torch.Generator().manual_seed(0))
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        return (x - 0.5).flatten(1) @ self.weight.T


def small() -> Victim:
    return Victim(Small(), name="small", num_classes=10, input_size=16)


def test_the_candidates_are_those_of_the_inner_attack_on_the_source(toy: Victim, toy_images: Images) -> None:
    x, y = toy_images
    source = source_model(SOURCE, "cpu")
    inner = attack_text.build("pgd(steps=3, stop=never)", LINF)
    with counting_passes(source) as there, counting_passes(toy) as here:
        crafted = attack_text.build(TEXT, LINF)(toy, x, y, rng=rng(12))
    expected = inner(source, x, y, rng=rng(12))
    assert torch.equal(crafted.x_adv, expected.x_adv)
    assert not torch.equal(crafted.x_adv, inner(toy, x, y, rng=rng(12)).x_adv)
    assert torch.equal(crafted.evidence["fooled"], toy(expected.x_adv).argmax(1) != y)
    assert torch.equal(crafted.evidence["source_fooled"], expected.evidence["fooled"])
    assert (here.forwards, here.backwards) == (12, 0)
    assert there.forwards == int(crafted.evidence["source_forwards"].sum()) == 36
    assert there.backwards == int(crafted.evidence["source_backwards"].sum()) == 36
    assert not crafted.evidence["resized"].any()


@pytest.mark.parametrize("threat", ["linf:8/255", "l2:0.5"])
def test_another_input_size_is_resized_there_and_back(threat: str) -> None:
    ball, victim, x = parse_threat(threat), small(), resized(toy_pictures(), 16)
    with torch.no_grad():
        y = victim(x).argmax(1)
    crafted = attack_text.build(TEXT, ball)(victim, x, y, rng=rng(12))
    assert crafted.x_adv.shape == x.shape and ball.allows(x, crafted.x_adv).all()
    assert (ball.size(x, crafted.x_adv) > 0).all()
    assert (crafted.evidence["resized"] == 1).all()


def test_images_that_are_not_square_are_resized_there_and_back() -> None:
    class Wide(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = small()(nn.functional.interpolate(x, size=(16, 16)))
            return logits

    x, y = torch.rand(3, 3, 24, 40, generator=torch.Generator().manual_seed(2)), torch.arange(3)
    crafted = attack(TEXT)(Wide(), x, y)
    assert crafted.x_adv.shape == x.shape and LINF.allows(x, crafted.x_adv).all()
    assert (LINF.size(x, crafted.x_adv) > 0).all()


def test_the_source_is_asked_among_the_classes_of_the_victim(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a part of ImageNet a 1000-way victim decides among the classes of the set, and so must a 1000-way source."""

    class Thousand(nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(1000, 192, generator=torch.Generator().manual_seed(seed)))

        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1) @ self.weight.T

    def full(name: str, seed: int) -> Victim:
        return Victim(Thousand(seed), name=name, num_classes=1000, input_size=8)

    source, classes = full("source", 0), single_classes("four", (3, 50, 700, 999))
    monkeypatch.setattr("vitattack.attacks.black_box.transfer.source_model", lambda text, device: source)
    x = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(5))
    victim = restrict_to_classes(full("victim", 1), classes)
    y = victim(x).argmax(1)
    nothing = lambda: (x[:0], y[:0])  # noqa: E731
    crafted = attack_text.build(TEXT, LINF).prepare(victim, nothing, rng=rng(1))(victim, x, y, rng=rng(8))
    expected = attack_text.build("pgd(steps=3, stop=never)", LINF)(
        restrict_to_classes(source, classes), x, y, rng=rng(8)
    )
    assert torch.equal(crafted.x_adv, expected.x_adv) and crafted.evidence["source_backwards"].tolist() == [3] * 8
    with pytest.raises(UsageError, match="has 1000 classes, the victim has 10"):
        attack_text.build(TEXT, LINF).prepare(tiny_vit(), nothing, rng=rng(1))


def test_a_change_arrives_as_it_was_made_and_no_change_as_none() -> None:
    """The image itself is never resampled on the way back, so the budget goes to the change alone."""
    x = torch.rand(4, 3, 24, 24, generator=torch.Generator().manual_seed(1)) * 0.8 + 0.1
    seen = resized(x, 32)
    ball = LpBall("linf", 8 / 255)
    assert torch.equal(carried(ball, x, seen, seen), x)
    even = carried(ball, x, seen, seen + 4 / 255)
    assert torch.allclose(even, x + 4 / 255, atol=1e-6)
    assert (resized(resized(x, 32), 24) - x).abs().max() > 8 / 255  # what resampling the image would have cost


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('transfer("tiny-vitt", pgd)', "unknown source model 'tiny-vitt': did you mean tiny-vit"),
        ("transfer(tiny_vit, pgd)", "takes a quoted text"),
        ("transfer(pgd)", "transfer needs source"),
        (f'transfer("{SOURCE}", transfer("tiny-vit", pgd))', "cannot wrap another transfer"),
        (f'transfer("{SOURCE}", restarts(2, transfer("tiny-vit", pgd)))', "cannot wrap another transfer"),
        (f'aas(transfer("{SOURCE}", pgd))', "do not hold each other"),
        (f'fp64(worst(pgd, transfer("{SOURCE}", pgd)))', "do not hold each other"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        attack_text.build(text, LINF)
    assert "\n" not in str(refused.value)


def test_other_classes_and_other_threats_are_refused() -> None:
    victim = Victim(nn.Identity(), name="seven", num_classes=7, input_size=32)
    with pytest.raises(UsageError, match="has 10 classes, the victim has 7"):
        attack_text.build(TEXT, LINF).prepare(victim, lambda: (torch.empty(0), torch.empty(0)), rng=rng(1))
    with pytest.raises(UsageError, match="not defined for spatial threats"):
        attack_text.build(TEXT, parse_threat("spatial"))


def test_the_weights_of_the_source_are_in_the_key(tmp_path: Path, toy_images: Images) -> None:
    def job(text: str) -> str:
        return evaluate(tiny_vit(), text, data=toy_images, threads=1, out=tmp_path).job.weights

    own = job("fgsm")
    assert job('transfer("tiny-vit", fgsm)') == f"{own} {source_digest('tiny-vit')}"
    both = 'restarts(2, worst(transfer("tiny-vit", fgsm), transfer("tiny-vit-standard", fgsm), fgsm))'
    assert job(both) == f"{own} {source_digest('tiny-vit')} {source_digest('tiny-vit-standard')}"


def test_judged_on_the_victim_with_the_cost_of_the_source_beside(toy_images: Images) -> None:
    (result,) = evaluate(tiny_vit(), TEXT, data=toy_images, threat="linf:16/255", threads=1).results
    assert result.count("fooled") > 0
    for record in result.records:
        assert record.forwards == 3 + (record.status == "fooled") and record.backwards == 0
        assert record.evidence["source_forwards"] == record.evidence["source_backwards"] == 3


def test_what_the_inner_attack_learns_it_learns_on_the_source(tmp_path: Path, toy_images: Images) -> None:
    text = f'transfer("{SOURCE}", scale_search(pgd(steps=2), grid=(1, 0.5), calibration=4))'
    x = toy_pictures(8, seed=5)
    settings = {"data": toy_images, "calibration": (x, torch.arange(8)), "threads": 1, "batch_size": 6, "out": tmp_path}
    with counting_passes(source_model(SOURCE, "cpu")) as passes:
        (first,) = evaluate(tiny_vit(), text, **settings).results  # type: ignore[arg-type]
    assert passes.forwards > 0 and first.learned is not None
    assert first.learned["forwards"] == 0  # of the victim
    path = next(tmp_path.glob("*/samples.jsonl"))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    (path.parent / "result.json").unlink()
    evaluate(tiny_vit(), text, **settings)  # type: ignore[arg-type]
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("inner", "hurried"),
    [
        ("pgd", True),
        ("pgd(stop=never)", False),
        ("fgsm(stop=never)", False),
        ("restarts(2, pgd(stop=never))", True),
        ("restarts(1, pgd(stop=never))", False),
        ("apgd_t(stop=never)", True),
        ("targets(pgd(stop=never), which=second)", False),
        ("fab(stop=never)", True),
        ("square", True),
        ("autoattack", True),
        ("autoattack_ref", True),
        ("fp64(pgd)", True),
        ("fp64(pgd(stop=never))", False),
    ],
)
def test_stopping_at_the_first_success_is_a_doubt(inner: str, hurried: bool) -> None:
    doubts = attack_text.build(f'transfer("{SOURCE}", {inner})', LINF).doubts()
    assert any("first errs" in doubt for doubt in doubts) == hurried


def test_loading_a_source_leaves_the_random_state_alone() -> None:
    source_model.cache_clear()
    before = torch.get_rng_state()
    source_model(SOURCE, "cpu")
    assert torch.equal(torch.get_rng_state(), before)


class Oblong(nn.Module):
    """Ten classes from 16 x 24 px images by a fixed random map."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(10, 3 * 16 * 24, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: Tensor) -> Tensor:
        return (x - 0.5).flatten(1) @ self.weight.T


def test_candidates_for_oblong_images_are_carried_within_the_budget() -> None:
    victim = Victim(Oblong(), name="oblong", num_classes=10, input_size=(16, 24))
    x = torch.rand(6, 3, 16, 24, generator=torch.Generator().manual_seed(1))
    y = victim(x).argmax(1)
    crafted = attack_text.build(TEXT, LINF)(victim, x, y, rng=rng(6))
    source = source_model(SOURCE, "cpu")
    at_source = resized(x, 32)
    expected = attack_text.build("pgd(steps=3, stop=never)", LINF)(source, at_source, y, rng=rng(6))
    change = torch.nn.functional.interpolate(expected.x_adv - at_source, size=(16, 24), mode="bilinear", antialias=True)
    assert torch.allclose(crafted.x_adv, (x + change.clamp(-8 / 255, 8 / 255)).clamp(0, 1), atol=1e-6)
    assert bool(LINF.allows(x, crafted.x_adv).all()) and bool(crafted.evidence["resized"].all())


def test_a_folder_whose_classes_have_another_order_is_asked_in_that_of_the_data(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    order = [(7 * number + 3) % 10 for number in range(10)]
    model = save_vit(tmp_path / "victim", names=list(CIFAR10))
    model.classifier.weight.data = model.classifier.weight.data[order]
    model.classifier.bias.data = model.classifier.bias.data[order]
    model.config.id2label = {number: CIFAR10[was] for number, was in enumerate(order)}
    for name in ("source", "unnamed"):
        model.save_pretrained(tmp_path / name)
        (tmp_path / name / "preprocessor_config.json").write_bytes(
            (tmp_path / "victim" / "preprocessor_config.json").read_bytes()
        )
    changed(tmp_path / "unnamed", id2label={str(n): f"LABEL_{n}" for n in range(10)}, label2id=None)
    inner = "pgd(steps=3, stop=never)"
    texts = [inner, *(f'transfer("{tmp_path / name}", {inner})' for name in ("source", "unnamed"))]
    data = load_data("cifar10-demo[:24]")
    x, _ = data.read(data.rows)
    with torch.no_grad():
        y = load_model(str(tmp_path / "victim"), torch.device("cpu")).victim(x).argmax(1)
    named = replace(data, source=TensorSource(x, y, 10))
    white, mapped, blind = evaluate(
        str(tmp_path / "victim"), texts, data=named, threat="linf:1/255", threads=1, batch_size=24
    ).results
    fooled = [[record.status == "fooled" for record in result.records] for result in (white, mapped, blind)]
    assert fooled[0] == fooled[1] != fooled[2] and any(fooled[0])
    assert len({source_digest(str(tmp_path / name)) for name in ("source", "unnamed")}) == 2
