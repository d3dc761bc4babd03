"""Every family of timm that holds an attention softmax, one small member each, against layer counts written by hand.

`python -m tests.models.attention.test_families` prints the coverage table.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from typing import Any

import pytest
import timm
import torch
from timm.models._registry import _module_to_models
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack

from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.attention.rescaled import Rescaled
from vitattack.models.attention.tap import AttentionTap, Seen
from vitattack.models.victim import Victim, frozen


@dataclass(frozen=True)
class Family:
    module: str
    model: str
    layers: int
    why: str  # where the number comes from
    size: int = 224
    ignored: int = 0
    fast: bool = False
    mixes_batch: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


def one(module: str, model: str, layers: int, why: str, size: int = 224, **rest: Any) -> Family:
    known = {key: rest.pop(key) for key in ("ignored", "fast", "mixes_batch") if key in rest}
    return Family(module, model, layers, why, size, settings=rest, **known)


FAMILIES = (
    one("beit", "beit_base_patch16_224", 3, "depth, cut to 3", depth=3),
    one("byoanet", "halonet_h1", 19, "3 + 3 + 10 + 3 halo blocks", 256),
    one("byoanet", "botnet26t_256", 3, "one in stage 3, two in stage 4", 256),
    one("byoanet", "lambda_resnet26t", 3, "keys of three lambda layers", 256),
    one("byobnet", "resnet50_clip", 1, "attention pooling"),
    one("cait", "cait_xxs24_224", 26, "24 talking-heads + 2 class attention", fast=True),
    one("coat", "coat_tiny", 26, "2 x 4 serial + 6 x 3 parallel"),
    one("coat", "coat_lite_tiny", 8, "2 x 4 serial", fast=True),
    one("convit", "convit_tiny", 22, "10 gated layers with two softmaxes + 2", fast=True),
    one("cpubone", "cpubone_nano", 3, "3 attention blocks"),
    one("crossvit", "crossvit_tiny_240", 21, "3 x (1 + 4 own, 2 cross)", 240),
    one("csatv2", "csatv2", 4, "4 of tokens; 14 attend over the batch, one image at a time", 512, ignored=14, mixes_batch=True),
    one("davit", "davit_tiny", 12, "6 of windows + 6 of channels"),
    one("deepseek_vit", "deepseek_vit_412m", 2, "depth, cut to 2", 140, depth=2, img_size=140),
    one("deit", "deit_tiny_distilled_patch16_224", 12, "depth"),
    one("edgenext", "edgenext_xx_small", 3, "one of channels in stages 2, 3 and 4", 256, fast=True),
    one("efficientformer", "efficientformer_l1", 1, "last block"),
    one("efficientformer_v2", "efficientformerv2_s0", 5, "2 + 2 + one downsampling"),
    one("efficientvim", "efficientvim_m1", 6, "2 + 2 + 2 mixers; the weights of 4 heads are ignored", ignored=1),
    one("efficientvit_msra", "efficientvit_m0", 24, "1 + 2 + 3 blocks of 4 cascaded heads"),
    one("eva", "eva02_tiny_patch14_224", 12, "depth", fast=True),
    one("fastvit", "fastvit_sa12", 2, "last stage", 256),
    one("gcvit", "gcvit_xxtiny", 12, "2 + 2 + 6 + 2"),
    one("gemma4_vit", "gemma4_vit_167m", 2, "depth, cut to 2", 192, depth=2, img_size=192),
    one("hiera", "hiera_tiny_224", 12, "1 + 2 + 7 + 2"),
    one("hieradet_sam2", "hieradet_small", 16, "1 + 2 + 11 + 2", 256),
    one("iformer", "iformer_t", 5, "3 in stage 3 + 2 in stage 4"),
    one("levit", "levit_128s", 11, "2 + 3 + 4 + 2 downsampling", fast=True),
    one("lowformer", "lowformer_b0", 7, "4 in stage 4 + 3 in stage 5"),
    one("maxxvit", "test_coatnet", 3, "the transformer stages", 160),
    one("maxxvit", "test_maxvit", 8, "4 blocks of window and grid", 160, fast=True),
    one("metaformer", "caformer_s18", 12, "9 + 3"),
    one("mobilenetv3", "mobilenetv4_hybrid_medium", 8, "4 + 4 multi-query", 256),
    one("mobilenetv5", "mobilenetv5_base", 13, "multi-query blocks", 256),
    one("mobilevit", "mobilevit_xxs", 9, "2 + 4 + 3", 256),
    one("mobilevit", "mobilevitv2_050", 9, "2 + 4 + 3 products", 256, fast=True),
    one("mvitv2", "mvitv2_tiny", 10, "1 + 2 + 5 + 2"),
    one("naflexvit", "naflexvit_base_patch16_gap", 2, "depth, cut to 2", 384, depth=2),
    one("nest", "nest_tiny", 12, "2 + 2 + 8"),
    one("nextvit", "nextvit_small", 4, "one per transformer block"),
    one("pit", "pit_xs_224", 12, "2 + 6 + 4"),
    one("pvt_v2", "pvt_v2_b0", 8, "2 x 4", fast=True),
    one("qwen3_vit", "qwen3_vit_88m", 2, "depth, cut to 2", 256, depth=2, img_size=256),
    one("resnest", "resnest14d", 0, "split attention", ignored=4, fast=True),
    one("resnet", "resnet18", 0, "none"),
    one("shvit", "shvit_s1", 9, "4 + 5"),
    one("sknet", "skresnet18", 0, "selective kernels", ignored=8, fast=True),
    one("byobnet", "gcresnet33ts", 0, "global context", 256, ignored=10, fast=True),
    one("swin_transformer", "swin_tiny_patch4_window7_224", 12, "2 + 2 + 6 + 2", fast=True),
    one("swin_transformer_v2", "swinv2_tiny_window8_256", 12, "2 + 2 + 6 + 2", 256),
    one("swin_transformer_v2_cr", "swinv2_cr_tiny_224", 12, "2 + 2 + 6 + 2"),
    one("tiny_vit", "tiny_vit_5m_224", 10, "2 + 6 + 2"),
    one("tnt", "tnt_s_patch16_224", 24, "12 x (pixels, patches)"),
    one("twins", "twins_svt_small", 18, "2 + 2 + 10 + 4"),
    one("twins", "twins_pcpvt_small", 16, "3 + 4 + 6 + 3"),
    one("visformer", "visformer_tiny", 8, "4 + 4"),
    one("vision_transformer", "vit_tiny_patch16_224", 12, "depth", fast=True),
    one("vision_transformer", "test_vit3", 10, "9 + attention pooling", 160),
    one("vision_transformer_hybrid", "vit_tiny_r_s16_p8_224", 12, "depth"),
    one("vision_transformer_relpos", "vit_relpos_small_patch16_224", 12, "depth"),
    one("vision_transformer_sam", "samvit_base_patch16_224", 3, "depth, cut to 3", depth=3),
    one("vitamin", "vitamin_small_224", 14, "depth of the transformer stage"),
    one("volo", "volo_d1_224", 20, "4 outlook + 14 + 2 class attention"),
    one("xcit", "xcit_nano_12_p16_224", 14, "12 of channels + 2 class attention", fast=True),
)  # fmt: skip

# The other model files of timm 1.0.31. A probe of their smallest member finds no softmax at all.
WITHOUT = {
    "convmixer", "convnext", "cspnet", "cspnext", "densenet", "dla", "dpn", "efficientnet", "efficientvit_mit", "fasternet",
    "focalnet", "ghostnet", "hardcorenas", "hgnet", "hrnet", "inception_next", "inception_resnet_v2", "inception_v3",
    "inception_v4", "lcnetv2", "mambaout", "mlp_mixer", "nasnet", "nfnet", "pnasnet", "rdnet", "regnet", "repghost", "repvit",
    "res2net", "resnetv2", "rexnet", "selecsls", "senet", "sequencer", "starnet", "swiftformer", "tresnet", "vgg", "vovnet",
    "xception", "xception_aligned",
}  # fmt: skip


def awake(model: nn.Module) -> nn.Module:
    """Random values where an initialisation puts (almost) zeros, which would hide a branch and all that happens in it."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if float(parameter.abs().max()) < 0.01:
                parameter.copy_(torch.rand(parameter.shape, generator=generator) * 0.4 + 0.1)
    return model.eval()


def check(model: nn.Module, name: str, size: int, layers: int, ignored: int = 0, mixes_batch: bool = False) -> None:
    victim = Victim(awake(model), name=name, num_classes=10, input_size=size)
    x = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(2))
    found = attention_layers(victim, x[:1])
    assert (len(found), len(found.ignored)) == (layers, ignored)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in victim.modules())
    if layers == 0:
        return
    modules = dict(victim.named_modules())
    assert all(layer.name in modules and layer.block in modules for layer in found.layers)
    assert all(layer.name.startswith(layer.block) for layer in found.layers)

    seen: list[tuple[float, bool]] = []

    def observe(one: Seen) -> None:
        scores, exact = one.scores(), one.scores(torch.float64)
        free = torch.ones_like(exact, dtype=torch.bool) if one.masked() is None else ~one.masked()
        gap = (scores.double() - exact)[free].abs().max() / (1 + exact[free].abs().max())
        seen.append((float(gap), one.by_head(scores).shape[0] == one.layer.heads))

    with frozen(victim), torch.no_grad():
        plain = victim(x[:1])
        assert torch.equal(Rescaled(victim, torch.ones(layers), layers=found)(x[:1]), plain), (
            "s = 1 is not the identity"
        )
        halved = Rescaled(victim, torch.full((layers,), 0.5), layers=found)(x[:1])
        assert not torch.equal(halved, plain), "s = 0.5 changes nothing"
        with AttentionTap(found, observe=observe):
            victim(x[:1])
        assert len(seen) == layers
        assert max(gap for gap, _ in seen) < 1e-4
        assert all(heads for _, heads in seen)
        if not mixes_batch:
            per_sample = torch.ones(2, layers)
            per_sample[0] = 0.5
            both, mixed = victim(x), Rescaled(victim, per_sample, per="sample", layers=found)(x)
            effect, leak = (float((both - mixed)[n].abs().max()) for n in (0, 1))
            # not always to the bit: a position bias that differs between samples makes torch choose another kernel
            assert effect > 0 and leak <= 0.01 * effect, "a sample's scale reaches another sample"
    # at 0.001: visformer with random weights has scores of 500,000, whose gradient underflows at 1
    scales = torch.full((layers,), 1e-3, requires_grad=True)
    heads = torch.full((layers, max(layer.heads for layer in found.layers)), 1e-3, requires_grad=True)
    with frozen(victim):
        (grad,) = torch.autograd.grad(_sum(Rescaled(victim, scales, layers=found)(x[:1])), scales)
        (of_heads,) = torch.autograd.grad(_sum(Rescaled(victim, heads, per="head", layers=found)(x[:1])), heads)
    assert bool((grad != 0).all()), f"no gradient reaches the scales {(grad == 0).nonzero().flatten().tolist()}"
    reached = of_heads.sum(1)
    assert torch.allclose(reached, grad, rtol=1e-2, atol=1e-4 * float(grad.abs().max()))
    assert not _get_current_function_mode_stack()


def _sum(logits: Tensor) -> Tensor:
    weights = torch.rand(logits.shape, generator=torch.Generator().manual_seed(3))
    return (logits * weights).sum()


def member(family: Family) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(family.model, num_classes=10, **family.settings)
    return model


@pytest.mark.parametrize(
    "family",
    [pytest.param(f, id=f.model, marks=() if f.fast else pytest.mark.slow) for f in FAMILIES],
)
def test_family(family: Family) -> None:
    check(member(family), family.model, family.size, family.layers, family.ignored, family.mixes_batch)


def test_every_model_file_of_timm_is_accounted_for() -> None:
    if not timm.__version__.startswith("1.0.31"):
        pytest.skip(f"the table is that of timm 1.0.31, this is {timm.__version__}")
    covered = {family.module for family in FAMILIES}
    assert covered | WITHOUT == set(_module_to_models)
    assert not covered & WITHOUT


@pytest.mark.slow
@pytest.mark.parametrize("module", sorted(WITHOUT))
def test_the_other_files_hold_no_softmax(module: str) -> None:
    if module not in _module_to_models:
        pytest.skip(f"timm {timm.__version__} has no {module}")
    name = _smallest(module)
    size = timm.get_pretrained_cfg(name).input_size[-1]
    victim = Victim(timm.create_model(name).eval(), name=name, num_classes=1000, input_size=size)
    found = attention_layers(victim, torch.rand(1, 3, size, size))
    assert found.calls == ()


def _smallest(module: str) -> str:
    sizes = {}
    for name in sorted(_module_to_models[module]):
        if timm.get_pretrained_cfg(name) is None:
            continue
        with torch.device("meta"):
            sizes[name] = sum(p.numel() for p in timm.create_model(name).parameters())
        if sizes[name] < 6_000_000:
            break
    return min(sizes, key=lambda name: sizes[name])


def test_torchvision_vit() -> None:
    from torchvision.models import VisionTransformer

    torch.manual_seed(0)
    check(VisionTransformer(32, 8, 3, 4, 64, 128, num_classes=10), "torchvision", 32, 3)


def test_torchvision_swin() -> None:
    from torchvision.models import SwinTransformer

    torch.manual_seed(0)
    check(SwinTransformer([2, 2], 24, [2, 2], [2, 4], [4, 4], num_classes=10), "torchvision swin", 32, 4)


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["vit", "deit", "swin"])
def test_transformers(family: str, kernel: str) -> None:
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed (requirements/peers.txt)")
    import transformers

    torch.manual_seed(0)
    common = {"image_size": 32, "num_labels": 10, "attn_implementation": kernel}
    plain = {
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "patch_size": 8,
    }
    if family == "vit":
        model: nn.Module = transformers.ViTForImageClassification(transformers.ViTConfig(**plain, **common))
    elif family == "deit":
        model = transformers.DeiTForImageClassification(transformers.DeiTConfig(**plain, **common))
    else:
        windows = {"patch_size": 2, "embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
        model = transformers.SwinForImageClassification(transformers.SwinConfig(**windows, **common))
    check(model, f"transformers {family} {kernel}", 32, 4 if family == "swin" else 3)


def coverage() -> list[tuple[str, str, str]]:
    """(file, model, result) of every model file of the installed timm."""
    rows = []
    for family in FAMILIES:
        try:
            check(member(family), family.model, family.size, family.layers, family.ignored, family.mixes_batch)
            result = f"{family.layers} layers ({family.why})"
        except Exception as error:  # noqa: BLE001
            result = f"NOT covered: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
        rows.append((family.module, family.model, result))
    unknown = set(_module_to_models) - {family.module for family in FAMILIES} - WITHOUT
    rows += [(module, "", "no softmax") for module in sorted(WITHOUT)]
    rows += [(module, "", "NOT covered: a file the table does not know") for module in sorted(unknown)]
    return rows


if __name__ == "__main__":
    torch.set_num_threads(1)
    for row in coverage():
        print(f"{row[0]:28}{row[1]:36}{row[2]}", flush=True)  # noqa: T201
