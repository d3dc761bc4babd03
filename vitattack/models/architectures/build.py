"""Architectures by name, with random weights: the embedded ones, those that timm lacks, and timm's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from vitattack.core.errors import UsageError, first_line
from vitattack.core.registry import Registry, did_you_mean
from vitattack.models.architectures.convstem import convnext_convstem, convnext_iso_convstem, vit_convstem
from vitattack.models.architectures.resnet import resnet50_32
from vitattack.models.architectures.small import SMALL
from vitattack.models.architectures.small_vits import vit_32
from vitattack.models.architectures.wideresnet import WideResNet
from vitattack.models.architectures.xcit import xcit_12
from vitattack.models.clip.texts import OPEN_CLIP

TORA = "tora:"  # a ViT with accuracy and robustness adapters, around any plain one
ARCHITECTURES: Registry[Callable[..., nn.Module]] = Registry("architecture")

for _size in ("small", "medium", "large"):
    ARCHITECTURES.add(f"xcit_{_size}_12_p4_32", partial(xcit_12, _size, patch_size=4, img_size=32, num_classes=10))
    if _size != "small":  # the small one is timm's
        ARCHITECTURES.add(f"xcit_{_size}_12_p16_224", partial(xcit_12, _size))
for _size in ("tiny", "small", "base", "large"):
    for _patch in (2, 4):
        ARCHITECTURES.add(f"vit_{_size}_patch{_patch}_32", partial(vit_32, _size, _patch))
for _size in ("small", "medium", "base"):
    ARCHITECTURES.add(f"vit_{_size}_convstem_224", partial(vit_convstem, _size))
for _size in ("tiny", "small", "base", "large"):
    ARCHITECTURES.add(f"convnext_{_size}_convstem", partial(convnext_convstem, _size))
ARCHITECTURES.add("convnext_iso_convstem", convnext_iso_convstem)
ARCHITECTURES.add("resnet50_32", resnet50_32)
for _depth, _width in ((28, 10), (70, 16)):
    ARCHITECTURES.add(f"wideresnet_silu_{_depth}_{_width}", partial(WideResNet, _depth, _width))


def build_architecture(arch: str, kwargs: Mapping[str, Any]) -> nn.Module:
    """Build an architecture with random weights: `small:NAME`, `open_clip:NAME`, `tora:ARCH`, one of `ARCHITECTURES` or timm's.

    Two arguments work everywhere: `qk_scale` sets the factor on q @ k, and `norm_eps` that of every layer norm.
    """
    rest = dict(kwargs)
    extras = {name: rest.pop(name) for name in EXTRAS if rest.get(name) is not None}
    try:
        model = _factory(arch)(**rest)
        for name, value in extras.items():
            EXTRAS[name](model, float(value))
        return model
    except UsageError:
        raise
    except Exception as error:  # architectures fail on wrong arguments in ways of their own
        reason = first_line(error) or type(error).__name__
        raise UsageError(f"architecture {arch} does not take these --arch-kwargs: {reason}") from error


def _factory(arch: str) -> Callable[..., nn.Module]:
    if arch.startswith("small:"):
        return SMALL[arch.removeprefix("small:")]
    if arch.startswith(OPEN_CLIP):
        return partial(_zero_shot, arch.removeprefix(OPEN_CLIP))
    if arch.startswith(TORA):
        return partial(_tora, arch.removeprefix(TORA))
    if arch in ARCHITECTURES:
        return ARCHITECTURES[arch]
    import timm

    if not timm.is_model(arch):
        known = [*timm.list_models(), *ARCHITECTURES, *(f"small:{n}" for n in SMALL)]
        raise UsageError(did_you_mean("architecture", arch, known))
    return partial(timm.create_model, arch, pretrained=False)


def _zero_shot(name: str, **arguments: Any) -> nn.Module:
    from vitattack.models.clip.zero_shot import build_zero_shot

    return build_zero_shot(name, arguments)


def _tora(arch: str, **arguments: Any) -> nn.Module:
    from vitattack.models.architectures.tora import tora

    return tora(build_architecture, arch, **arguments)


class QueryScale(nn.Module):
    """A factor on q in place of a missing `q_norm`, since timm's fused kernel does not read `attn.scale`."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, q: Any) -> Any:
        return q * self.factor


def _set_qk_scale(model: nn.Module, scale: float) -> None:
    attentions = [m for m in model.modules() if hasattr(m, "q_norm") and hasattr(m, "scale")]
    if not attentions or not all(isinstance(m.q_norm, nn.Identity) for m in attentions):
        raise UsageError("qk_scale fits plain ViTs only (attention with a scale, queries not normalised): drop it")
    for module in attentions:
        attention: Any = module
        attention.q_norm = QueryScale(scale / attention.scale)


def _set_norm_eps(model: nn.Module, eps: float) -> None:
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = eps


EXTRAS: dict[str, Callable[[nn.Module, float], None]] = {"qk_scale": _set_qk_scale, "norm_eps": _set_norm_eps}
