"""Models with gradient checkpointing: the same logits and gradients as without, also under taps on their attention."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor
from torch.utils import checkpoint

from tests.conftest import tiny_vit, toy_pictures
from vitattack.diagnostics.diagnose import diagnose
from vitattack.models.attention.attention_map import AttentionMap
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.attention.rescaled import Rescaled
from vitattack.models.base import Attackable
from vitattack.models.victim import Victim, frozen
from vitattack.models.views import BackwardOnly


def checkpointed(how: str) -> Victim:
    victim = tiny_vit()
    model = victim.model
    if how == "timm":
        torch.manual_seed(0)
        vit = VisionTransformer(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=10)
        vit.set_grad_checkpointing(True)
        return Victim(vit, name="timm", num_classes=10, input_size=32)
    if how == "none":
        return victim
    for block in model.blocks:  # type: ignore[union-attr]
        block.forward = partial(checkpoint.checkpoint, block.forward, use_reentrant=how == "reentrant")
    return victim


def gradient(model: Attackable, x: Tensor) -> Tensor:
    with frozen(model), torch.enable_grad():
        x = x.clone().requires_grad_()
        logits = model(x)
        (grad,) = torch.autograd.grad((logits * torch.linspace(-1, 1, 10)).sum(), x)
    return grad


def views(victim: Victim, layers: AttentionMap) -> Iterator[Attackable]:
    scales = torch.tensor([0.3, 2.0])
    yield victim
    yield Rescaled(victim, scales, layers=layers)
    yield BackwardOnly(victim, scales, layers)


@pytest.mark.parametrize("how", ["reentrant", "not reentrant"])
def test_checkpointing_changes_no_gradient_of_the_model_or_of_a_view(how: str) -> None:
    x, plain, victim = toy_pictures(2), checkpointed("none"), checkpointed(how)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layers = attention_layers(victim, x)
    assert len(layers) == 2
    for ours, theirs in zip(views(plain, attention_layers(plain, x)), views(victim, layers), strict=True):
        assert torch.equal(gradient(ours, x), gradient(theirs, x))


def test_timm_models_with_checkpointing_are_attacked_and_diagnosed() -> None:
    victim, x = checkpointed("timm"), toy_pictures(2)
    assert all(bool(gradient(view, x).any()) for view in views(victim, attention_layers(victim, x)))
    y = victim(x).detach().argmax(1)
    assert len(diagnose(victim, (x, y), threads=1).blocks) == 2
    assert victim.model.grad_checkpointing is True


def test_checkpointing_is_on_again_afterwards() -> None:
    before = dict(vars(checkpoint))
    with pytest.raises(ZeroDivisionError), frozen(tiny_vit()):
        raise ZeroDivisionError
    assert {name: value for name, value in vars(checkpoint).items() if before.get(name) is not value} == {}
