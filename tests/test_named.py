"""The public names that load, list and register by name do what the command line does with the same words."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name

import numpy as np
import pytest
import torch
from torch import Tensor

import vitattack
from tests.core.test_torch_free import loaded_by
from vitattack.attacks.catalogue import ATTACKS
from vitattack.attacks.gradient.loop import Gradient
from vitattack.attacks.gradient.starts import Clean
from vitattack.attacks.gradient.steps import Sign
from vitattack.attacks.losses.base import LOSSES
from vitattack.attacks.losses.plain import CrossEntropy
from vitattack.core.errors import UsageError
from vitattack.core.registry import Registry
from vitattack.models.zoo.catalogue import search_zoo
from vitattack.named import REGISTRIES
from vitattack.threats.lp import LpBall

NAMES = ("load_model", "load_data", "evaluate", "diagnose", "check", "attack", "compare", "runs")
NAMES += ("list_models", "list_attacks", "register")


@contextmanager
def registered() -> Iterator[None]:
    """What the block registers is unknown behind it."""
    before = {kind: dict(resolve_name(place)._entries) for kind, place in REGISTRIES.items()}
    try:
        yield
    finally:
        for kind, place in REGISTRIES.items():
            resolve_name(place)._entries = before[kind]


@pytest.fixture
def forgotten() -> Iterator[None]:
    with registered():
        yield


def test_the_names_a_newcomer_needs_are_public_and_explained() -> None:
    for name in NAMES:
        assert name in vitattack.__all__
        assert len(inspect.getdoc(getattr(vitattack, name)).split()) >= 15, name


def test_lists_need_no_torch() -> None:
    assert not loaded_by("import vitattack; vitattack.list_models('rb/*')") & {"torch", "timm"}
    assert not loaded_by("import vitattack; vitattack.list_attacks()") & {"torch", "timm"}


def test_a_loaded_model_gives_the_numbers_of_its_name() -> None:
    model = vitattack.load_model("tiny-vit", device="cpu")
    data = vitattack.load_data("cifar10-demo", limit=16, model=model)
    x, y = data.read(data.rows)
    assert x.shape == (16, 3, 32, 32) and model.size == (32, 32) and not model.training
    by_hand = int((model(x).argmax(1) == y).sum())
    by_object = vitattack.evaluate(model, "fgsm", data=data, threads=1)
    by_name = vitattack.evaluate("tiny-vit", "fgsm", data="cifar10-demo", limit=16, threads=1)
    assert by_name.clean.correct == by_hand == by_object.clean.correct
    status = [[record.status for record in each.results[0].records] for each in (by_object, by_name)]
    assert status[0] == status[1] and "fooled" in status[0]


def test_checkpoints_and_files_of_images_are_loaded_with_the_options_of_the_command_line(tmp_path: Path) -> None:
    victim = vitattack.load_model("tiny-vit", device="cpu")
    torch.save(victim.model.state_dict(), tmp_path / "mine.pt")
    again = vitattack.load_model(str(tmp_path / "mine.pt"), device="cpu", arch="small:tiny_vit_32", normalize="cifar10")
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(again(x), victim(x))
    np.savez(tmp_path / "x.npz", x=x.numpy(), y=np.array([1, 2]))
    data = vitattack.load_data(str(tmp_path / "x.npz"))
    assert torch.equal(data.read((1,))[0], x[1:]) and data.read(data.rows)[1].tolist() == [1, 2]
    with pytest.raises(UsageError, match="did you mean normalize"):
        vitattack.load_model(str(tmp_path / "mine.pt"), normalise="cifar10")


def test_lists_can_be_narrowed() -> None:
    assert vitattack.list_models() == [entry.id for entry in search_zoo("")] and "tiny-vit" in vitattack.list_models()
    assert all(name.startswith("rb/") for name in vitattack.list_models("rb/*")) and vitattack.list_models("rb/*")
    assert set(vitattack.list_attacks("apgd*")) == {"apgd", "apgd_ce", "apgd_dlr", "apgd_t"}
    assert "ddn" in vitattack.list_attacks(threat="l2") and "ddn" not in vitattack.list_attacks(threat="linf")
    with pytest.raises(UsageError, match="did you mean linf"):
        vitattack.list_attacks(threat="lnf")


def test_every_kind_names_a_registry() -> None:
    for kind, place in REGISTRIES.items():
        registry = resolve_name(place)
        assert isinstance(registry, Registry) and registry.kind == kind and len(list(registry)) > 0


@pytest.mark.usefixtures("forgotten")
def test_a_registered_attack_and_loss_can_be_written_in_texts() -> None:
    @vitattack.register("loss", "true_logit")
    class TrueLogit:
        def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
            return -logits.gather(1, y[:, None]).squeeze(1)

    @vitattack.register("attack", "bim", paper="Kurakin et al., 2017", draws=False)
    def bim(ball: LpBall, *, steps: int = 10) -> Gradient:
        """The basic iterative method."""
        return Gradient(ball, steps, Sign(1 / steps), CrossEntropy(), Clean())

    assert "true_logit" in LOSSES and ATTACKS["bim"].summary == "The basic iterative method."
    found = vitattack.evaluate("tiny-vit", ["bim(steps=3)", "pgd(steps=3, loss=true_logit)"], limit=8, threads=1)
    same = vitattack.evaluate("tiny-vit", "pgd(steps=3, step=1/3, start=clean)", limit=8, threads=1)
    assert [vars(r) for r in found.results[0].records] == [vars(r) for r in same.results[0].records]
    assert found.results[1].job.attack == "pgd(steps=3, loss=true_logit)"


@pytest.mark.usefixtures("forgotten")
def test_names_that_are_taken_and_kinds_that_are_none_are_refused() -> None:
    with pytest.raises(UsageError, match="the attack 'pgd' exists already"):
        vitattack.register("attack", "pgd")
    with pytest.raises(UsageError, match="did you mean attack"):
        vitattack.register("atack", "mine")
    with pytest.raises(UsageError, match="unknown description of an attack 'papers': did you mean paper"):
        vitattack.register("attack", "mine", papers="none")
    with pytest.raises(UsageError, match="unknown description of a loss 'paper'"):
        vitattack.register("loss", "mine", paper="none")
