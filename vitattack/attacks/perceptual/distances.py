"""Perceptual distances: LPIPS and SSIM beside l2 and linf."""

from __future__ import annotations

import contextlib
import io
import warnings
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitattack.core.errors import UsageError
from vitattack.core.files import offline_variable

BACKBONE = "alexnet-owt-7be5be79.pth"  # weights of the LPIPS trunk, fetched by torchvision
SMALLEST = 31  # px; smaller images vanish in the strides of the trunk
C1, C2 = 0.01**2, 0.03**2


def ssim(x: Tensor, other: Tensor) -> Tensor:
    """(B,) structural similarity of images in [0,1], 11 px Gaussian window with deviation 1.5 (Wang et al. 2004)."""
    size = min(11, *x.shape[-2:])
    at = torch.arange(size, dtype=x.dtype, device=x.device) - (size - 1) / 2
    profile = (-at.square() / (2 * 1.5**2)).exp()
    window = torch.outer(profile, profile) / profile.sum().square()
    kernel = window.expand(x.shape[1], 1, size, size)

    def mean(values: Tensor) -> Tensor:
        return F.conv2d(values, kernel, groups=x.shape[1])

    mu, nu = mean(x), mean(other)
    var_x, var_o, both = mean(x * x) - mu * mu, mean(other * other) - nu * nu, mean(x * other) - mu * nu
    score = (2 * mu * nu + C1) * (2 * both + C2) / ((mu * mu + nu * nu + C1) * (var_x + var_o + C2))
    return score.flatten(1).mean(1)


def backbone_file() -> Path:
    return Path(torch.hub.get_dir()) / "checkpoints" / BACKBONE


@cache
def lpips_missing() -> str | None:
    """Reason why LPIPS cannot be computed, with a remedy; None if it can."""
    try:
        lpips_model()
    except UsageError as error:
        return str(error)
    return None


@cache
def lpips_model() -> nn.Module:
    """LPIPS on AlexNet (Zhang et al., CVPR 2018); torchvision fetches its trunk once."""
    import lpips

    if offline_variable() and not backbone_file().exists():
        raise UsageError(f"{offline_variable()}: LPIPS needs {BACKBONE} in {backbone_file().parent}")
    try:
        quiet = contextlib.redirect_stdout(io.StringIO())  # torchvision announces downloads
        with warnings.catch_warnings(), quiet, torch.random.fork_rng(devices=[]):  # layers are initialised at random
            warnings.simplefilter("ignore")  # lpips uses deprecated arguments of torchvision
            model = lpips.LPIPS(net="alex", verbose=False)
    except Exception as error:  # no network, a mirror's error page and a broken file raise different types
        raise UsageError(
            f"LPIPS needs AlexNet weights that cannot be fetched here ({type(error).__name__}): "
            f"connect and run again, or put {BACKBONE} into {backbone_file().parent}"
        ) from error
    return cast(nn.Module, model).eval().requires_grad_(False)


@torch.no_grad()
def measures(x: Tensor, x_adv: Tensor, *, lpips: bool) -> dict[str, Tensor]:
    """(B,) l2, linf, SSIM and optionally LPIPS between two batches of images in [0,1]."""
    delta = (x_adv - x).flatten(1)
    distances: dict[str, Any] = {
        "l2": torch.linalg.vector_norm(delta, dim=1),
        "linf": delta.abs().amax(1),
        "ssim": ssim(x, x_adv),
    }
    if lpips:
        if min(x.shape[-2:]) < SMALLEST:
            raise UsageError(
                f"LPIPS needs images of at least {SMALLEST} px, not {min(x.shape[-2:])}: "
                "name the attack as perceptual(..., lpips=False)"
            )
        model = lpips_model().to(x.device)
        rgb = [(image.float().expand(-1, 3, -1, -1) if x.shape[1] == 1 else image.float()) for image in (x, x_adv)]
        distances["lpips"] = model(*rgb, normalize=True).flatten()
    return distances
