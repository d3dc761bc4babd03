"""A model with attention scales of its own, against the view that rescales it from outside."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.conftest import tiny_vit, toy_pictures
from vitattack.core.errors import UsageError
from vitattack.models.attention.baked_scales import SCALES, adapters_of, fold_scales, install_scales, scales_of
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.attention.rescaled import Rescaled
from vitattack.models.victim import Victim, model_digest
from vitattack.models.zoo.file_options import FileOptions
from vitattack.models.zoo.load import load_model


def victim_of(name: str, **options: object) -> Victim:
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=10, **options).eval()
    for parameter in model.parameters():  # biases and tables of position start at zero
        with torch.no_grad():
            parameter += 0.02 * torch.randn(parameter.shape)
    return Victim(model, name=name, num_classes=10, input_size=int(options["img_size"]))


TINY_SWIN = {"img_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 2)}
TINY_VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 3, "num_heads": 2}


def scales(victim: Victim, *, heads: int = 0, seed: int = 1) -> Tensor:
    layers = attention_layers(victim, victim.grey())
    shape = (len(layers), heads) if heads else (len(layers),)
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 2 + 0.1


@pytest.mark.parametrize("heads", [0, 2])
def test_installed_scales_are_those_of_the_view(heads: int) -> None:
    for victim in (tiny_vit(), victim_of("swin_tiny_patch4_window7_224", **TINY_SWIN)):
        x = toy_pictures()[:4]
        s = scales(victim, heads=heads)
        per = "head" if heads else "layer"
        with torch.no_grad():
            plain, wanted = victim(x), Rescaled(victim, s, per=per)(x)
            before = model_digest(victim)
            install_scales(victim.model, torch.ones_like(s))
            assert torch.equal(victim(x), plain)
            scales_of(victim.model).copy_(s)
            assert torch.equal(victim(x), wanted) and not torch.equal(wanted, plain)
            assert model_digest(victim) != before
            twin = copy.deepcopy(victim)
            scales_of(victim.model).fill_(1)
            assert torch.equal(twin(x), wanted) and torch.equal(victim(x), plain)
        assert SCALES in victim.model.state_dict()
        assert len(attention_layers(twin, x)) == len(attention_layers(victim, x)) == len(s)


def test_a_view_on_a_scaled_model_multiplies() -> None:
    victim, x = tiny_vit(), toy_pictures()[:4]
    s = scales(victim)
    with torch.no_grad():
        wanted = Rescaled(victim, s * 0.5)(x)
        install_scales(victim.model, s)
        torch.testing.assert_close(Rescaled(victim, torch.full_like(s, 0.5))(x), wanted, atol=1e-4, rtol=1e-5)


def test_a_failed_forward_leaves_nothing_behind() -> None:
    victim, x = tiny_vit(), toy_pictures()[:2]
    with torch.no_grad():
        install_scales(victim.model, scales(victim))
        wanted = victim(x)
        with pytest.raises((RuntimeError, AssertionError)):
            victim(x[:, :, :16, :16])
        assert torch.equal(victim(x), wanted)
        assert not victim.model._attention_taps


@pytest.mark.parametrize(
    "make",
    [
        lambda: victim_of("vit_tiny_patch16_224", **TINY_VIT),
        lambda: victim_of("vit_tiny_patch16_224", **TINY_VIT, qkv_bias=False),
        lambda: tiny_vit(),
        lambda: victim_of("cait_xxs24_224", img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2),
    ],
)
@pytest.mark.parametrize("heads", [0, 2])
def test_folding_keeps_the_logits(make, heads: int) -> None:
    victim, x = make(), toy_pictures()[:4]
    if victim.name == "toy":  # its head is a hundred times a usual one
        with torch.no_grad():
            victim.model.head.weight /= 100
            victim.model.head.bias /= 100
    s = scales(victim, heads=heads)
    names = list(victim.model.state_dict())
    install_scales(victim.model, s)
    with torch.no_grad():
        wanted = victim(x)
        assert fold_scales(victim.model, x)
        assert float((victim(x) - wanted).abs().max()) <= 1e-6
    assert list(victim.model.state_dict()) == names and scales_of(victim.model) is None
    assert fold_scales(victim.model, x) and not adapters_of(victim.model.state_dict())
    install_scales(victim.model, s)  # a folded model can be trained on
    with torch.no_grad():
        assert not torch.equal(victim(x), wanted)


@pytest.mark.parametrize(
    "make",
    [
        lambda: victim_of("vit_tiny_patch16_224", **TINY_VIT, qk_norm=True),
        lambda: victim_of("swin_tiny_patch4_window7_224", **TINY_SWIN),
        lambda: victim_of("xcit_nano_12_p16_224", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2),
    ],
)
def test_what_cannot_be_folded_is_left_and_loaded_by_the_adapter(make, tmp_path: Path) -> None:
    victim, x = make(), toy_pictures()[:4]
    install_scales(victim.model, scales(victim))
    with torch.no_grad():
        wanted = victim(x)
        before = {name: value.clone() for name, value in victim.model.state_dict().items()}
        assert not fold_scales(victim.model, x)
        assert torch.equal(victim(x), wanted)
    assert all(torch.equal(value, before[name]) for name, value in victim.model.state_dict().items())
    assert adapters_of(victim.model.state_dict()) == ("attention-scales",)
    if not victim.name.startswith("vit"):
        return
    path = tmp_path / "scaled.safetensors"
    save_file({name: value.contiguous() for name, value in before.items()}, path)
    kwargs = {**TINY_VIT, "qk_norm": True, "num_classes": 10}
    options = FileOptions("vit_tiny_patch16_224", kwargs, normalize="none", adapter="attention-scales")
    loaded = load_model(str(path), torch.device("cpu"), options).victim
    with torch.no_grad():
        assert torch.equal(loaded(x), wanted)
    with pytest.raises(UsageError, match="attention_scales"):  # without the adapter it does not fit
        load_model(str(path), torch.device("cpu"), FileOptions("vit_tiny_patch16_224", kwargs, normalize="none"))


def test_a_file_without_scales_is_refused_by_the_adapter(tmp_path: Path) -> None:
    model = victim_of("vit_tiny_patch16_224", **TINY_VIT).model
    assert isinstance(model, nn.Module)
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, tmp_path / "a.safetensors")
    kwargs = {**TINY_VIT, "num_classes": 10}
    options = FileOptions("vit_tiny_patch16_224", kwargs, normalize="none", adapter="attention-scales")
    with pytest.raises(UsageError, match="finds no tensor"):
        load_model(str(tmp_path / "a.safetensors"), torch.device("cpu"), options)
