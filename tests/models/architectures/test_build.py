"""Architectures that timm lacks, against closed forms; adapters, against planted states."""

from __future__ import annotations

import pytest
import timm
import torch
from timm.models.vision_transformer import Attention
from torch import nn
from torch.nn import functional as F

from vitattack.core.errors import UsageError
from vitattack.models.architectures.build import build_architecture
from vitattack.models.architectures.small_vits import fold_kernel, interpolate_positions, vit_32
from vitattack.models.architectures.xcit import xcit_12
from vitattack.models.normalise import NORMALISERS
from vitattack.models.weights.adapters import Target, adapt
from vitattack.models.weights.state_dict import load_strict


@pytest.mark.parametrize(("patch", "strides"), [(16, "2222"), (8, "1222"), (4, "1122"), (2, "1112")])
def test_xcit_stems_halve_as_often_as_the_patch_says(patch: int, strides: str) -> None:
    """2 is where counting in steps of two goes wrong: three of the four convolutions, not all."""
    with torch.device("meta"):
        model = xcit_12("small", patch_size=patch, img_size=32)
    stem = [m for m in model.patch_embed.proj.modules() if isinstance(m, nn.Conv2d)]  # type: ignore[union-attr]
    assert "".join(str(m.stride[0]) for m in stem) == strides
    tokens, grid = model.patch_embed(torch.empty(1, 3, 32, 32, device="meta"))  # type: ignore[operator]
    assert tokens.shape[1] == (32 // patch) ** 2 and tuple(grid) == (32 // patch, 32 // patch)


@pytest.mark.parametrize("patch", [0, 3, 5, 32])
def test_other_patches_are_refused(patch: int) -> None:
    with pytest.raises(UsageError, match="cannot be made from 16"), torch.device("meta"):
        build_architecture("xcit_medium_12_p16_224", {"patch_size": patch})


@pytest.mark.parametrize("patch", [1, 4, 8, 16])
def test_a_folded_kernel_answers_as_the_old_one_on_the_enlarged_image(patch: int) -> None:
    generator = torch.Generator().manual_seed(0)
    kernel = torch.randn(5, 3, 16, 16, generator=generator, dtype=torch.float64)
    x = torch.randn(2, 3, 2 * patch, 3 * patch, generator=generator, dtype=torch.float64)
    enlarged = F.interpolate(x, scale_factor=16 // patch, mode="nearest")
    assert torch.allclose(
        F.conv2d(x, fold_kernel(kernel, patch), stride=patch), F.conv2d(enlarged, kernel, stride=16), atol=1e-10
    )
    with pytest.raises(UsageError, match="does not fold into 6 x 6"):
        fold_kernel(kernel, 6)


def test_positions_of_a_linear_ramp_stay_linear_and_the_class_token_stays() -> None:
    rows = torch.arange(14.0).repeat_interleave(14)
    positions = torch.cat([torch.tensor([-7.0]), rows]).view(1, -1, 1)
    resized = interpolate_positions(positions, (7, 7), prefix=1)
    assert resized.shape == (1, 50, 1) and resized[0, 0, 0] == -7
    assert torch.allclose(resized[0, 1:, 0].view(7, 7)[:, 3], torch.arange(7.0) * 2 + 0.5)
    assert interpolate_positions(positions, (14, 14), prefix=1) is positions
    with pytest.raises(UsageError, match="no square grid"):
        interpolate_positions(positions, (7, 7), prefix=0)


def test_a_plain_vit_for_224_px_becomes_one_for_32() -> None:
    torch.manual_seed(0)
    big = timm.create_model("vit_tiny_patch16_224", num_classes=10, depth=2).eval()
    small = vit_32("tiny", 4, depth=2).eval()
    state = adapt(big.state_dict(), Target(small, None), ("vit-patch",))
    load_strict(small, state, "adapted")
    x = torch.rand(1, 3, 32, 32)
    same = vit_32("tiny", 4, depth=2).eval()
    again = adapt(small.state_dict(), Target(same, None), ("vit-patch",))
    load_strict(same, again, "already small")
    with torch.no_grad():
        assert torch.equal(small(x), same(x))
        patches = big.patch_embed.proj(F.interpolate(x, scale_factor=4, mode="nearest"))
        assert torch.allclose(small.patch_embed.proj(x), patches, atol=1e-5)  # type: ignore[operator, union-attr]
    with pytest.raises(UsageError, match="'vit-patch' is for plain ViTs"):
        adapt({"conv1.weight": torch.zeros(1)}, Target(small, None), ("vit-patch",))


@pytest.mark.parametrize("fused", [True, False])
def test_qk_scale_is_the_factor_on_q_and_k(fused: bool) -> None:
    """Trap 7: 768^-0.5 with 8 heads of 48, as in Mo et al., whichever kernel runs."""
    kwargs = {"embed_dim": 384, "num_heads": 8, "depth": 1, "num_classes": 10, "qk_scale": 768**-0.5}
    torch.manual_seed(0)
    model = build_architecture("vit_small_patch4_32", kwargs).eval()
    attention: Attention = model.blocks[0].attn  # type: ignore[index, union-attr, assignment]
    attention.fused_attn = fused
    x = 3 * torch.randn(2, 5, 384)
    with torch.no_grad():
        q, k, v = attention.qkv(x).view(2, 5, 3, 8, 48).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) * 768**-0.5).softmax(-1)
        wanted = attention.proj((weights @ v).transpose(1, 2).flatten(2))
        assert torch.allclose(attention(x), wanted, atol=1e-5)
    plain = timm.create_model("vit_small_patch16_224", patch_size=4, img_size=32, **{**kwargs, "qk_scale": None})
    assert model.state_dict().keys() == plain.state_dict().keys()


def test_qk_scale_needs_a_plain_vit() -> None:
    with pytest.raises(UsageError, match="qk_scale fits plain ViTs only"):
        build_architecture("resnet18", {"qk_scale": 0.1})


def test_norm_eps_reaches_every_layer_norm() -> None:
    with torch.device("meta"):
        model = build_architecture("swin_tiny_patch4_window7_224", {"norm_eps": 1e-6})
    assert {m.eps for m in model.modules() if isinstance(m, nn.LayerNorm)} == {1e-6}


def test_resampling_is_never_silent() -> None:
    with torch.device("meta"):
        model = timm.create_model("swin_tiny_patch4_window7_224")
        other = timm.create_model("swin_tiny_patch4_window7_224", window_size=14)
    state = {name: torch.zeros(t.shape) for name, t in other.state_dict().items()}
    with pytest.raises(UsageError, match=r"'swin' would resample .*relative_position_bias_table from \(729, 3\)"):
        adapt(state, Target(model, None), ("swin",))
    with pytest.raises(UsageError, match="'swin' is for timm's Swin"):
        adapt(state, Target(nn.Linear(1, 1), None), ("swin",))
    with pytest.raises(UsageError, match="unknown adapter 'swim': did you mean swin"):
        adapt(state, Target(model, None), ("swim",))


def test_timm_filter_splits_class_attention_and_leaves_its_own_layout_alone() -> None:
    with torch.device("meta"):
        model = timm.create_model("xcit_small_12_p16_224", depth=1, cls_attn_layers=1)
    own = {name: torch.zeros(t.shape) for name, t in model.state_dict().items()}
    adapted = adapt(own, Target(model, None), ("timm",))
    assert adapted.keys() == own.keys() and all(adapted[name] is own[name] for name in own)
    official = {name: t for name, t in own.items() if not name.startswith("cls_attn_blocks.0.attn.")}
    official["cls_attn_blocks.0.attn.qkv.weight"] = torch.arange(3.0).repeat_interleave(384)[:, None].expand(-1, 384)
    official["cls_attn_blocks.0.attn.qkv.bias"] = torch.zeros(3 * 384)
    for part in ("proj.weight", "proj.bias"):
        official[f"cls_attn_blocks.0.attn.{part}"] = own[f"cls_attn_blocks.0.attn.{part}"]
    adapted = adapt(official, Target(model, None), ("timm",))
    assert adapted.keys() == own.keys() and float(adapted["cls_attn_blocks.0.attn.k.weight"].mean()) == 1


@pytest.mark.parametrize(("layer", "inner"), [("0.", "1."), ("normalize.", "model.")])
def test_a_saved_normaliser_is_dropped_if_it_is_the_declared_one(layer: str, inner: str) -> None:
    """Trap 3: EasyRobust saves the normaliser as layer 0."""
    model = nn.Linear(2, 2)
    mean, std = NORMALISERS["imagenet"] or ((), ())
    state = {
        layer + "mean": torch.tensor(mean).view(1, 3, 1, 1),
        layer + "std": torch.tensor(std).view(1, 3, 1, 1),
        inner + "weight": torch.ones(2, 2),
        inner + "bias": torch.ones(2),
    }
    adapted = adapt(state, Target(model, (mean, std)), ("normaliser",))
    assert set(adapted) == {"weight", "bias"}
    for wrong in (None, NORMALISERS["half"]):
        with pytest.raises(UsageError, match=r"normalises with .*mean or std 0\.485, 0\.456, 0\.406"):
            adapt(state, Target(model, wrong), ("normaliser",))
    plain = {"weight": torch.ones(2, 2), "bias": torch.ones(2)}
    assert adapt(plain, Target(model, None), ("normaliser",)) == plain
