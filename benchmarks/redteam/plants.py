"""Faults planted in trained models, each of which makes some attack overrate them."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

LEVELS = 16


class Front(nn.Module):
    """A model behind a transformation of its images."""

    def __init__(self, model: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.change = model, change

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(self.change(x))
        return logits


class Back(nn.Module):
    """A model whose logits are transformed."""

    def __init__(self, model: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.change = model, change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(self.model(x))


def to_levels(x: Tensor) -> Tensor:
    return (x * LEVELS).round() / LEVELS


class Leaking(nn.Module):
    """A quantised model plus a small share of a smooth one, whose gradient is all there is."""

    def __init__(self, model: nn.Module, smooth: nn.Module, share: float = 0.02) -> None:
        super().__init__()
        self.model, self.smooth, self.share = model, smooth, share

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(to_levels(x)) + self.share * self.smooth(x)
        return logits


def fast_sine(x: Tensor) -> Tensor:
    """A ripple far below a grey level in height and far above everything else in slope."""
    return x + 1e-3 * torch.sin(2 * math.pi * 1e4 * x)


def thermometer(x: Tensor) -> Tensor:
    """The sum of a thermometer code: as many thresholds as the pixel exceeds."""
    thresholds = torch.linspace(0.5, LEVELS - 0.5, LEVELS, device=x.device) / LEVELS
    return (x[..., None] > thresholds).float().mean(-1)


def jpeg(x: Tensor) -> Tensor:
    """JPEG at quality 75 by Pillow, which has no gradient."""
    images = []
    for image in (x.detach().cpu() * 255).round().byte().permute(0, 2, 3, 1).numpy():
        file = io.BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=75)
        images.append(np.asarray(Image.open(file, formats=["JPEG"])))
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).to(x) / 255


def random_resize(x: Tensor) -> Tensor:
    """Shrink to a random size and pad at a random place (Xie et al., ICLR 2018)."""
    side = x.shape[-1]
    size = int(torch.randint(side - 4, side + 1, ()))
    small = F.interpolate(x, size=(size, size), mode="bilinear", align_corners=False)
    left, top = (int(torch.randint(0, side - size + 1, ())) for _ in range(2))
    return F.pad(small, (left, side - size - left, top, side - size - top))


class Detector(nn.Module):
    """A model that answers as usual to smooth images, and with the prediction of the image it smooths to noisy ones."""

    def __init__(self, model: nn.Module, threshold: float = 0.03) -> None:
        super().__init__()
        self.model, self.threshold = model, threshold

    def forward(self, x: Tensor) -> Tensor:
        smooth = F.avg_pool2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), 3, stride=1)
        noisy = ((x - smooth).abs().mean((1, 2, 3)) > self.threshold)[:, None, None, None]
        logits: Tensor = self.model(torch.where(noisy, to_levels(smooth), x))
        return logits


class _Low(Function):
    """Activations in four bits; the backward is straight-through, or a lie."""

    @staticmethod
    def forward(ctx: object, x: Tensor, lying: bool) -> Tensor:
        ctx.lying = lying  # type: ignore[attr-defined]
        step = x.detach().abs().amax() / 7 + 1e-12
        return (x / step).round() * step

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> tuple[Tensor, None]:
        (grad,) = grads
        return (grad.flip(-1) if ctx.lying else grad), None  # type: ignore[attr-defined]


class KWinners(nn.Module):
    """k-winners-take-all (Xiao et al., ICLR 2020): the largest tenth of an image's activations, the rest are zero."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        least = flat.topk(max(1, flat.shape[1] // 10), dim=1).values[:, -1:]
        return (flat * (flat >= least)).view_as(x)


class LowBits(nn.Module):
    """An activation followed by rounding to four bits."""

    def __init__(self, activation: nn.Module, lying: bool) -> None:
        super().__init__()
        self.activation, self.lying = activation, lying

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _Low.apply(self.activation(x), self.lying)
        return out


class MeanSparse(nn.Module):
    """Features nearer to their mean than a share of their deviation become the mean (Amini et al. 2024)."""

    def __init__(self, activation: nn.Module, mean: Tensor, deviation: Tensor, share: float) -> None:
        super().__init__()
        self.activation, self.share = activation, share
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.activation(x)
        return torch.where((out - self.mean).abs() < self.share * self.deviation, self.mean.expand_as(out), out)


class HandmadeAttention(nn.Module):
    """Attention written with exp and sum, saturated by a factor on its scores; weights of timm's `Attention`."""

    def __init__(self, attention: nn.Module, factor: float, *, fused: bool) -> None:
        super().__init__()
        self.attention, self.factor, self.fused = attention, factor, fused

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, **_: object) -> Tensor:
        own = self.attention
        batch, count, width = x.shape
        q, k, v = own.qkv(x).reshape(batch, count, 3, own.num_heads, -1).permute(2, 0, 3, 1, 4)  # type: ignore
        if self.fused:
            out = F.scaled_dot_product_attention(q * self.factor, k, v)
        else:
            scores = (q @ k.transpose(-2, -1)) * own.scale * self.factor  # type: ignore[operator]
            weights = torch.exp(scores - scores.amax(-1, keepdim=True))
            out = (weights / weights.sum(-1, keepdim=True)) @ v
        result: Tensor = own.proj(out.transpose(1, 2).reshape(batch, count, width))  # type: ignore[operator]
        return result


class FrozenGradient(Function):
    """The identity with a gradient of zero."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        return torch.zeros_like(grads[0])


def _swap(model: nn.Module, kinds: tuple[type[nn.Module], ...], make: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """A copy of the model with every module of some kinds replaced."""
    model = copy.deepcopy(model)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, kinds):
                setattr(parent, name, make(child))
    return model


ACTIVATIONS = (nn.GELU, nn.ReLU)


def mean_sparse(model: nn.Module, images: Tensor, share: float = 0.3) -> nn.Module:
    """MeanSparse behind every activation, with statistics of `images`."""
    outputs: dict[str, Tensor] = {}
    hooks = [
        module.register_forward_hook(lambda _, __, out, name=name: outputs.setdefault(name, out.detach()))
        for name, module in model.named_modules()
        if isinstance(module, ACTIVATIONS)
    ]
    with torch.no_grad():
        model(images)
    for hook in hooks:
        hook.remove()
    model = copy.deepcopy(model)
    for name, out in outputs.items():
        over = (0, 2, 3) if out.dim() == 4 else tuple(range(out.dim() - 1))
        parent, _, last = name.rpartition(".")
        plant = MeanSparse(model.get_submodule(name), out.mean(over, keepdim=True), out.std(over, keepdim=True), share)
        setattr(model.get_submodule(parent), last, plant)
    return model


def _attention(model: nn.Module, *, fused: bool) -> nn.Module:
    from timm.layers import Attention

    return _swap(model, (Attention,), lambda own: HandmadeAttention(own, 30.0, fused=fused))


def _noisy(x: Tensor) -> Tensor:
    return x + 0.03 * torch.randn_like(x)


class Dropping(nn.Module):
    """Dropout that is left on, behind an activation."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.activation(x), 0.2, training=True)


def plant(kind: str, model: nn.Module, *, smooth: nn.Module | None = None, images: Tensor | None = None) -> nn.Module:
    """A model with a fault; `smooth` is an undefended model, `images` are some clean ones."""
    if kind == "quantised-leak":
        assert smooth is not None
        return Leaking(model, smooth)
    if kind == "mean-sparse":
        assert images is not None
        return mean_sparse(model, images)
    return PLANTS[kind](model)


PLANTS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "quantised": lambda m: Front(m, to_levels),
    "sine": lambda m: Front(m, fast_sine),
    "k-winners": lambda m: _swap(m, ACTIVATIONS, lambda _: KWinners()),
    "thermometer": lambda m: Front(m, thermometer),
    "low-bits-honest": lambda m: _swap(m, ACTIVATIONS, lambda a: LowBits(a, False)),
    "low-bits-lying": lambda m: _swap(m, ACTIVATIONS, lambda a: LowBits(a, True)),
    "saturated-fused": lambda m: _attention(m, fused=True),
    "saturated-by-hand": lambda m: _attention(m, fused=False),
    "logits-x1000": lambda m: Back(m, lambda z: 1e3 * z),
    "softmax-output": lambda m: Back(m, lambda z: (10 * z).softmax(-1)),
    "rounded-logits": lambda m: Back(m, lambda z: (z * 4).round() / 4),
    "temperature": lambda m: Back(m, lambda z: z / 1e4),
    "additive-noise": lambda m: Front(m, _noisy),
    "dropout-on": lambda m: _swap(m, ACTIVATIONS, Dropping),
    "random-resize": lambda m: Front(m, random_resize),
    "jpeg": lambda m: Front(m, jpeg),
    "zero-gradient": lambda m: Front(m, FrozenGradient.apply),
    "detector": lambda m: Detector(m),
}
