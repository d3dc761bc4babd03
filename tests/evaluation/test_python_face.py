"""`vitattack.evaluate`, `attack` and `diagnose` with what Python callers have in their hands: it works, or one line says why."""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import vitattack
from tests.conftest import tiny_vit, toy_pictures
from vitattack.core.errors import UsageError

N = 4
X = toy_pictures(N)
with torch.no_grad():
    Y = tiny_vit()(X).argmax(1)
MODEL = tiny_vit().model
SETTINGS: dict[str, Any] = {"data": (X, Y), "threat": "linf:0.002", "threads": 1}
PGD = "pgd(steps=2)"


class Streamed(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(zip(X, Y.tolist(), strict=True))


class Items(Dataset[Any]):
    """Pairs as torchvision's sets give them, or what else `make` makes of an image and its label."""

    def __init__(self, make: Any = lambda x, y: (x, int(y))) -> None:
        self.make = make

    def __len__(self) -> int:
        return N

    def __getitem__(self, number: int) -> Any:
        return self.make(X[number], Y[number])


def evaluate(**given: Any) -> list[list[str]]:
    settings = {**SETTINGS, **given}
    found = vitattack.evaluate(settings.pop("model", MODEL), settings.pop("attacks", PGD), **settings)
    return [[record.status for record in result.records] for result in found.results]


def craft(**given: Any) -> Tensor:
    settings: dict[str, Any] = {"model": MODEL, "x": X, "y": Y, **given}
    attack = vitattack.attack(settings.pop("attack", PGD), threat=settings.pop("threat", "linf:0.002"))
    x_adv = attack(settings["model"], settings["x"], settings["y"]).x_adv
    assert not x_adv.requires_grad and x_adv.dtype == torch.float32 and not x_adv.is_inference()
    return x_adv


SAME_DATA: dict[str, Any] = {
    "arrays": (X.numpy(), Y.numpy()),
    "a read-only array": (np.broadcast_to(X.numpy(), X.shape), Y.numpy()),
    "a list of a pair": [X, Y],
    "labels in a list": (X, Y.tolist()),
    "int32 labels": (X, Y.int()),
    "uint8 labels": (X, Y.byte()),
    "float64 images": (X.double(), Y),
    "images under autograd": (X.clone().requires_grad_(), Y),
    "a Dataset": TensorDataset(X, Y),
    "a Dataset of images and numbers": Items(),
    "a Dataset of arrays": Items(lambda x, y: (x.numpy(), y.numpy())),
    "an IterableDataset": Streamed(),
    "a DataLoader": DataLoader(TensorDataset(X, Y), batch_size=3),
    "a DataLoader of a stream": DataLoader(Streamed(), batch_size=3),
}


@pytest.mark.parametrize("data", SAME_DATA.values(), ids=list(SAME_DATA))
def test_the_same_images_in_other_hands_give_the_same_records(data: Any) -> None:
    assert evaluate(data=data) == evaluate()


@pytest.mark.parametrize("data", [SAME_DATA[name] for name in ("arrays", "a Dataset", "a DataLoader")])
def test_a_limit_takes_the_first_images_and_diagnose_takes_all_forms(data: Any) -> None:
    assert evaluate(data=data, limit=2) == [evaluate()[0][:2]]
    assert vitattack.diagnose(MODEL, data, threads=1).n == N


def test_a_limit_reads_no_further() -> None:
    class Watched(Items):
        def __getitem__(self, number: int) -> Any:
            assert number < 2
            return super().__getitem__(number)

    assert len(evaluate(data=Watched(), limit=2)[0]) == 2


def test_threats_and_attacks_come_as_texts_or_objects() -> None:
    both = evaluate(threat=["linf:0.001", "linf:0.002"])
    assert (
        both == evaluate(threat="linf:0.001,0.002") == evaluate(threat=[vitattack.LpBall("linf", 0.001), "linf:0.002"])
    )
    ours = vitattack.attack(PGD, threat="linf:0.002")
    assert evaluate(attacks=[ours, "fgsm"]) == evaluate(attacks=[PGD, "fgsm"])
    assert evaluate(attacks=ours) == evaluate()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("attack", [PGD, "auto(steps=2, k=2, passes=60)", "fab(steps=2)", "scale(pgd(steps=2), c=0.5)"])
def test_callers_may_sit_where_gradients_are_off(mode: Any, attack: str) -> None:
    wanted, crafted = evaluate(attacks=attack), craft(attack=attack)
    with mode():
        assert evaluate(attacks=attack, data=(X * 1, Y * 1)) == wanted
        assert torch.equal(craft(attack=attack, x=X * 1, y=Y * 1), crafted)


def test_a_diagnosis_in_inference_mode() -> None:
    with torch.inference_mode():
        assert vitattack.diagnose(MODEL, (X * 1, Y * 1), threads=1).n == N


SAME_IMAGES: dict[str, Any] = {
    "arrays": {"x": X.numpy(), "y": Y.numpy()},
    "int32 labels": {"y": Y.int()},
    "float64 images": {"x": X.double()},
    "images under autograd": {"x": X.clone().requires_grad_()},
}


@pytest.mark.parametrize("given", SAME_IMAGES.values(), ids=list(SAME_IMAGES))
@pytest.mark.parametrize("attack", [PGD, "fgsm", "fab(steps=2)", "square(queries=3)", "auto(steps=2, k=2, passes=60)"])
def test_attacks_take_the_same_forms(given: Any, attack: str) -> None:
    assert torch.equal(craft(attack=attack, **given), craft(attack=attack))


def test_an_attack_on_no_image_gives_none() -> None:
    crafted = vitattack.attack(PGD)(MODEL, X[:0], Y[:0])
    assert crafted.x_adv.shape == (0, 3, 32, 32) and crafted.evidence["fooled"].shape == (0,)


def test_a_missing_distance_is_infinite() -> None:
    staged = vitattack.attack("worst(pgd(steps=20), fab(steps=1))", threat="linf:0.01")(MODEL, X, Y)
    unasked = staged.evidence["stage"] == 0
    assert bool(unasked.any()) and bool((staged.evidence["distance"][unasked] == math.inf).all())
    found = vitattack.evaluate(MODEL, "worst(pgd(steps=20), fab(steps=1))", **{**SETTINGS, "threat": "linf:0.01"})
    table = found.frame()
    assert (table.loc[table["stage"] == 0, "distance"] == math.inf).all() and (table["distance"] >= 0).all()
    stored = [r.evidence["distance"] for r in found.results[0].records if r.evidence["stage"] == 0]
    assert stored == [-1.0] * len(stored)  # JSON knows no infinity


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a lambda": ({"model": lambda x: x}, "a function and no module"),
    "labels out of range": ({"data": (X, Y + 10)}, "is no class of"),
    "negative labels": ({"data": (X, Y - 10)}, "is no class of"),
    "one-hot labels": ({"data": (X, torch.eye(10)[Y])}, "one label per image"),
    "float labels": ({"data": (X, Y.float())}, "class numbers as integers"),
    "too few labels": ({"data": (X, Y[:2])}, "one label per image"),
    "bytes for images": ({"data": ((255 * X).byte(), Y)}, "floats in"),
    "images to 255": ({"data": (255 * X, Y)}, "divide by 255"),
    "no image": ({"data": (X[:0], Y[:0])}, "no images"),
    "an empty loader": ({"data": DataLoader(TensorDataset(X[:0], Y[:0]))}, "no images"),
    "no data": ({"data": None}, "data is NoneType"),
    "images alone": ({"data": X}, "data is Tensor"),
    "a set of images alone": ({"data": Items(lambda x, y: x)}, "no pair of images and labels"),
    "a set of dicts": ({"data": Items(lambda x, y: {"image": x})}, "no pair of images and labels"),
    "a set of strange images": ({"data": Items(lambda x, y: (object(), y))}, "ToTensor"),
    "images of many sizes": ({"data": Items(lambda x, y: (x[:, int(y) :], y))}, "differ in size"),
    "an attack that is a function": ({"attacks": [lambda model, x, y: x]}, "an attack is a function"),
    "an attack for another threat": ({"attacks": vitattack.attack("pgd", threat="l2:1")}, "was made for l2:"),
    "no threat": ({"threat": []}, "no threat is named"),
    "a threat twice": ({"threat": ["linf:0.1", vitattack.LpBall("linf", 0.1)]}, "named twice"),
}


@pytest.mark.parametrize(("given", "said"), REFUSED.values(), ids=list(REFUSED))
def test_what_does_not_work_is_refused_in_one_line(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        evaluate(**given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"model": lambda x: x}, "a function and no module"),
        ({"y": Y + 10}, "is no class of"),
        ({"y": Y[:2]}, "one label per image"),
        ({"x": (255 * X).byte()}, "floats in"),
        ({"x": X * 255}, "divide by 255"),
        ({"x": X[0]}, "floats in"),
    ],
)
def test_attacks_refuse_the_same(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        craft(**given)
    assert "\n" not in str(caught.value)


def test_a_model_made_in_inference_mode_is_refused_in_one_line() -> None:
    with torch.inference_mode():
        model = tiny_vit().model
    with pytest.raises(UsageError, match="made in inference_mode") as caught:
        craft(model=model)
    assert "\n" not in str(caught.value)


def test_the_version_is_that_of_the_package() -> None:
    assert vitattack.__version__ == version("vitattack") and "__version__" in dir(vitattack)
