"""Universal perturbations and patches: the optimum on linear victims, what is kept of them, and whom they are judged on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

import vitattack
from tests.conftest import Linear, batch, tiny_vit, toy_pictures
from vitattack.attacks import attack_text
from vitattack.attacks.base import Attack
from vitattack.attacks.losses.base import logit_margin
from vitattack.attacks.universal.shared import Shared
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.victim import Victim
from vitattack.threats.base import Threat, parse_threat

N = 12


def rng(n: int) -> SampleRng:
    return SampleRng(0, tuple(range(n)))


def made(text: str, threat: Threat, victim: Victim, x: Tensor, y: Tensor) -> Attack:
    return attack_text.build(text, threat).prepare(victim, lambda: (x, y), rng=SampleRng(0, (0,)))


def linear() -> Victim:
    return Victim(Linear(gap=100.0), name="linear", num_classes=5, input_size=8).double()


@pytest.mark.parametrize("threat", ["linf:8/255", "l2:0.5"])
def test_one_perturbation_reaches_the_optimum_of_a_linear_victim(threat: str) -> None:
    """Images that it was not made on, none of which reaches a face of the box."""
    victim, (x, y) = linear(), batch(N, seed=7)
    attack = made("universal(steps=60, batch=5)", parse_threat(threat), victim, *batch(9))
    crafted = attack(victim, x, y, rng=rng(N))
    slope = victim.model.slope  # type: ignore[union-attr]
    gain = 8 / 255 * slope.abs().sum() if threat.startswith("linf") else 0.5 * slope.norm()  # type: ignore[union-attr, operator]
    with torch.no_grad():
        assert torch.allclose(crafted.evidence["margin"], logit_margin(victim(x), y) + gain, rtol=1e-4)
    deltas = crafted.x_adv - x
    assert torch.allclose(deltas, deltas[:1].expand_as(deltas), atol=1e-9)


def test_a_patch_with_one_place_ends_where_the_weights_ask_for() -> None:
    victim, (x, y) = linear(), batch(N, seed=7)
    attack = made("patch_universal(steps=40, batch=4)", parse_threat("patch:8px"), victim, *batch(9))
    crafted = attack(victim, x, y, rng=rng(N))
    wanted = (victim.model.slope > 0).double().view(3, 8, 8)  # type: ignore[union-attr, operator]
    assert torch.equal(crafted.x_adv, wanted.expand_as(x))


@pytest.mark.parametrize(("text", "threat"), [("universal", "linf:8/255"), ("patch_universal", "patch:12px")])
def test_it_fools_more_of_other_images_than_its_start(text: str, threat: str) -> None:
    victim, x = tiny_vit(), toy_pictures(48, seed=21)
    y = victim(x).argmax(1)
    own = toy_pictures(48, seed=22)
    text = f"{text}(steps=40, batch=16)"
    attack = made(text, parse_threat(threat), victim, own, victim(own).argmax(1))
    start = attack_text.build(text, parse_threat(threat))
    fooled, by_start = (int(each(victim, x, y, rng=rng(48)).evidence["fooled"].sum()) for each in (attack, start))
    assert fooled >= by_start + 5, (fooled, by_start)


def test_what_is_kept_gives_the_same_pixels_again() -> None:
    victim, x = tiny_vit(), toy_pictures(6)
    y = victim(x).argmax(1)
    attack = made("patch_universal(steps=5, batch=4, tries=3)", parse_threat("patch:5px"), victim, x, y)
    kept = json.loads(json.dumps(attack.learned()))
    again = attack_text.build("patch_universal(steps=5, batch=4, tries=3)", parse_threat("patch:5px")).recall(
        victim, kept
    )
    one, two = (each(victim, x, y, rng=rng(6)) for each in (attack, again))
    assert torch.equal(one.x_adv, two.x_adv) and isinstance(again, Shared) and again.made is not None
    assert again.made.images == kept["images"] == 6
    assert len({tuple((image != clean).nonzero()[0].tolist()) for image, clean in zip(one.x_adv, x, strict=True)}) > 3


def test_it_is_made_once_on_images_that_are_not_evaluated(tmp_path: Path) -> None:
    victim = tiny_vit()
    x, own = toy_pictures(10, seed=1), toy_pictures(12, seed=2)
    y, labels = victim(x).argmax(1), victim(own).argmax(1)

    def run() -> vitattack.Result:
        settings = {"threat": "linf:4/255", "data": (x, y), "calibration": (own, labels), "out": tmp_path}
        return vitattack.evaluate(victim, "universal(steps=5, batch=4)", **settings)[0]  # type: ignore[arg-type]

    first = run()
    (section,) = [each for each in first.sections if each.name == "universal"]
    assert section.content["images"] == 12 and "it was made on" in section.notes[0]
    assert first.folder is not None and (first.folder / "learned.json").is_file()
    assert run().records == first.records
    with pytest.raises(UsageError, match="among the evaluated ones"):
        vitattack.evaluate(victim, "universal", threat="linf:4/255", data=(x, y), calibration=(x, y))


def test_a_model_that_knows_no_image_is_refused() -> None:
    x, y = batch(4)
    with pytest.raises(UsageError, match="classifies no calibration image correctly"):
        made("universal", parse_threat("linf:8/255"), linear(), x, y + 3)
