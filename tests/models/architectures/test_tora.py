"""TORA-ViT: its backbone untouched, its gates and adapters by closed forms, the poster's sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from vitattack.core.errors import UsageError
from vitattack.models.architectures.build import build_architecture
from vitattack.models.architectures.names import check_architecture
from vitattack.models.architectures.tora import ToraViT
from vitattack.models.architectures.tora_layers import GatedFusion
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.flops import ShapesOnly, count_forward
from vitattack.models.head import find_head
from vitattack.models.victim import Victim, model_digest
from vitattack.models.weights.adapters import Target, adapt
from vitattack.models.weights.from_backbone import from_backbone
from vitattack.models.zoo.file_options import FileOptions
from vitattack.models.zoo.from_file import load_file

POOLED = ("small:tiny_vit_32", {"embed_dim": 16, "depth": 2, "num_heads": 2})
CLASS = ("vit_tiny_patch16_224", {"img_size": 32, "patch_size": 8, **POOLED[1], "num_classes": 10})
BACKBONES = pytest.mark.parametrize("backbone", [POOLED, CLASS], ids=["pooled", "class-token"])
OPTIONS = [
    {},
    *({"gate": gate} for gate in ("sum", "attention", "diagonal")),
    {"residual": "block"},
    {"tuning": "single"},
    {"tuning": "head"},
]
X = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def plain_vit(backbone: tuple[str, dict[str, Any]]) -> nn.Module:
    torch.manual_seed(1)
    return build_architecture(*backbone).eval()


def tora(backbone: tuple[str, dict[str, Any]], *, shaken: bool = False, **own: Any) -> ToraViT:
    """A TORA-ViT on the weights of `plain_vit`; `shaken` gives every part of its own random weights."""
    arch, arguments = backbone
    model = build_architecture(f"tora:{arch}", {**arguments, "adapter_dim": 6, **own}).eval()
    assert isinstance(model, ToraViT)
    model.load_state_dict(adapt(plain_vit(backbone).state_dict(), Target(model, None), ("tora",)))
    if shaken:
        torch.manual_seed(2)
        for name, parameter in model.named_parameters():
            if not name.startswith("backbone."):
                nn.init.normal_(parameter, std=0.3)
    return model


@BACKBONES
@pytest.mark.parametrize("own", OPTIONS, ids=str)
@torch.no_grad()
def test_a_new_model_computes_what_its_backbone_computes(backbone: Any, own: dict[str, Any]) -> None:
    wanted = plain_vit(backbone)(X)
    assert torch.equal(tora(backbone, head="acc", **own)(X), wanted)
    assert torch.equal(tora(backbone, head="rob", **own)(X), wanted)
    torch.testing.assert_close(tora(backbone, **own)(X), wanted, atol=1e-6, rtol=0)
    assert not torch.allclose(tora(backbone, shaken=True, **own)(X), wanted, atol=1e-2)


@BACKBONES
@torch.no_grad()
def test_the_joint_prediction_is_the_mean_of_the_heads(backbone: Any) -> None:
    model = tora(backbone, shaken=True).double()
    heads = {}
    for model.head in ("acc", "rob", "joint"):
        heads[model.head] = model(X.double())
    torch.testing.assert_close(heads["joint"], (heads["acc"] + heads["rob"]) / 2, atol=1e-12, rtol=0)
    assert not torch.allclose(heads["acc"], heads["rob"], atol=1e-2)


def one_adapter_alone(model: ToraViT, side: str, x: Tensor) -> Tensor:
    """The prediction of one head from its own adapter and the values of the fusion, without the other adapter or gates."""
    net = model.backbone
    z = net.norm_pre(net.patch_drop(net._pos_embed(net.patch_embed(x))))
    has_class = net.cls_token is not None
    token = model.tokens[side].expand(len(x), 1, -1)  # type: ignore[index]
    for block, layer in zip(net.blocks, model.layers, strict=True):
        z = block(z)
        rows: Any = layer
        base, rest = (z[:, :1], z[:, 1:]) if has_class else (z.mean(1, keepdim=True), z)
        stream = getattr(rows, side)(torch.cat([base + token, rest], 1))
        token = stream[:, :1] - base
        ones = torch.ones(len(x), z.shape[1], stream.shape[1]) / stream.shape[1]
        z = z + (ones @ rows.fusion.value(stream) + (stream[:, -z.shape[1] :] - z))
    z = torch.cat([z[:, :1] + token, z[:, 1:]], 1) if has_class else z + token
    logits: Tensor = model.heads[side](net.forward_head(net.norm(z), pre_logits=True))  # type: ignore[index]
    return logits


@BACKBONES
@pytest.mark.parametrize("side", ["acc", "rob"])
@torch.no_grad()
def test_gates_forced_to_one_side_are_that_adapter_alone(backbone: Any, side: str) -> None:
    model = tora(backbone, shaken=True, head=side, gates=side)
    forced = model(X)
    assert torch.equal(forced, one_adapter_alone(model, side, X))
    model.force("learned")
    assert not torch.allclose(model(X), forced, atol=1e-3)


@torch.no_grad()
def test_gates_are_a_softmax_over_the_adapters_and_weigh_both_values() -> None:
    torch.manual_seed(0)
    fusion = GatedFusion(8, residual="none")
    nn.init.normal_(fusion.value.weight)
    z, acc, rob = torch.randn(3, 2, 5, 8).unbind()
    q, v_acc, v_rob = fusion.query(z), fusion.value(acc), fusion.value(rob)
    scores = torch.stack([q @ fusion.key(stream).transpose(1, 2) / 8**0.5 for stream in (acc, rob)])
    gates = scores.softmax(0)
    torch.testing.assert_close(fusion(z, acc, rob), (gates[0] @ v_acc + gates[1] @ v_rob) / 5)
    fusion.weighing = "attention"
    weights = gates * scores.softmax(-1)
    torch.testing.assert_close(fusion(z, acc, rob), weights[0] @ v_acc + weights[1] @ v_rob)
    fusion.weighing = "diagonal"
    own = gates.diagonal(dim1=-2, dim2=-1)[..., None]
    torch.testing.assert_close(fusion(z, acc, rob), own[0] * v_acc + own[1] * v_rob)


@BACKBONES
@pytest.mark.parametrize("own", [*OPTIONS, {"residual": "none"}], ids=str)
def test_every_reading_runs_and_an_image_does_not_depend_on_its_batch(backbone: Any, own: dict[str, Any]) -> None:
    model = tora(backbone, shaken=True, **own).double()
    x = X.double().requires_grad_()
    logits = model(x)
    torch.testing.assert_close(model(x[:1]), logits[:1])
    (grad,) = torch.autograd.grad(F.cross_entropy(logits, torch.tensor([1, 2, 3])), x)
    assert grad.flatten(1).norm(dim=1).min() > 0


@BACKBONES
def test_gates_are_no_attention_of_keys(backbone: Any) -> None:
    """They normalise over the adapters; what AAS and diagnose-softmax see are the backbone's softmaxes."""

    def layers(**own: Any) -> list[str]:
        model = tora(backbone, shaken=True, **own)
        return [layer.name for layer in attention_layers(model, X).layers]

    blocks = [f"backbone.blocks.{number}.attn" for number in range(2)]
    assert layers() == layers(gate="diagonal") == blocks
    weighed = layers(gate="attention")  # ordinary softmaxes over keys, two in every fusion
    assert [name for name in weighed if name.startswith("backbone.")] == blocks and len(weighed) == 6


def test_settings_belong_to_the_digest_and_the_joint_head_is_one_linear_map() -> None:
    models = [tora(POOLED), tora(POOLED, head="acc"), tora(POOLED, gates="acc"), tora(POOLED, gate="sum")]
    assert len({model_digest(model) for model in models}) == len(models)
    victim = Victim(tora(POOLED, shaken=True), name="tora", num_classes=10, input_size=32)
    head = find_head(victim, X)
    assert head is not None and head.width == 32


def test_nothing_of_the_backbone_learns() -> None:
    model = tora(POOLED)
    assert not any(p.requires_grad for p in model.backbone.parameters())
    assert all(p.requires_grad for name, p in model.named_parameters() if not name.startswith("backbone."))


@pytest.mark.parametrize(
    ("own", "parameters", "flops"),
    [({"tuning": "head"}, 88.1, 17.6), ({"gate": "diagonal"}, 111.1, 24.9), ({}, 111.1, 26.0)],
    ids=str,
)
def test_sizes_are_those_of_the_poster(own: dict[str, Any], parameters: float, flops: float) -> None:
    """The poster counts multiply-adds, and has 111.2 M parameters; one more unit of width or a key bias would round there."""
    with ShapesOnly():
        model = build_architecture("tora:vit_base_patch16_224", own)
    victim = Victim(model, name="tora", num_classes=1000, input_size=224)
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) == parameters
    assert round(count_forward(victim)[0] / 2e9, 1) == flops


def test_a_backbone_with_other_classes_leaves_the_heads_as_they_were() -> None:
    model = tora(POOLED, num_classes=7)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = from_backbone(dict(plain_vit(POOLED).state_dict()), Target(model, None))
    assert all(torch.equal(state[name], before[name]) for name in before if "head" in name)
    assert from_backbone(before, Target(model, None)) is before


def test_files_are_loaded_and_arguments_that_fit_are_named(tmp_path: Path) -> None:
    path = tmp_path / "tora.safetensors"
    model = tora(POOLED, shaken=True)
    save_file(model.state_dict(), path)
    arch = f"tora:{POOLED[0]}"
    for head in ("acc", "joint"):
        options = FileOptions(arch, {**POOLED[1], "adapter_dim": 6, "head": head}, normalize="none")
        model.head = head  # type: ignore[assignment]
        with torch.no_grad():
            assert torch.equal(load_file(path, options).victim.eval()(X), model(X))
    with pytest.raises(UsageError, match=r'"adapter_dim": 6'):
        load_file(path, FileOptions(arch, POOLED[1], normalize="none"))


@pytest.mark.parametrize(
    ("arch", "arguments", "message"),
    [
        ("tora:small:tiny_cnn_32", {}, "takes plain ViTs with one head"),
        ("tora:deit_tiny_distilled_patch16_224", {}, "takes plain ViTs with one head"),
        ("tora:small:tiny_vit_32", {"head": "both"}, "takes head=acc|rob|joint, not 'both'"),
        ("tora:small:tiny_vit_32", {"gate": "max"}, "takes gate=mean|sum|attention|diagonal"),
        ("tora:small:tiny_vit_32", {"adapter_dim": 0}, "at least 1, not 0"),
        ("tora:small:tiny_vitt_32", {}, "tiny_vit_32"),
        ("tora:small:tiny_vit_32", {"heads": 2}, "heads"),
    ],
)
def test_what_it_does_not_take_is_refused_in_one_line(arch: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        build_architecture(arch, arguments)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_names_are_checked_without_building() -> None:
    check_architecture("tora:vit_base_patch16_224")
    check_architecture("tora:small:tiny_vit_32")
    with pytest.raises(UsageError, match="vit_bass_patch16_224"):
        check_architecture("tora:vit_bass_patch16_224")
