"""Input transformations of transfer attacks by name, with the settings of their papers."""

from __future__ import annotations

from vitattack.attacks.base import Attack
from vitattack.attacks.catalogue import catalogued
from vitattack.attacks.views.through_view import ThroughView
from vitattack.models.gradient_views.inputs import (
    Admixed,
    DiverseInputs,
    PatchOut,
    ScaleInvariant,
    TranslationInvariant,
)


@catalogued(paper="Xie et al., CVPR 2019", quick="di(pgd(steps=3))")
def di(inner: Attack, *, rate: float = 1.1, probability: float = 0.5) -> ThroughView:
    """Diverse inputs: with probability 1/2 each image is enlarged at random, padded to 1.1 times its size and shrunk back."""
    return ThroughView(inner, DiverseInputs(rate, probability), "di")


@catalogued(paper="Dong et al., CVPR 2019", quick="ti(pgd(steps=3))")
def ti(inner: Attack, *, size: int = 15) -> ThroughView:
    """Translation invariance: gradients of the image are smoothed by a Gaussian of 15 x 15 pixels."""
    return ThroughView(inner, TranslationInvariant(size), "ti")


@catalogued(paper="Lin et al., ICLR 2020", quick="si(pgd(steps=3), copies=2)")
def si(inner: Attack, *, copies: int = 5) -> ThroughView:
    """Scale invariance: the mean loss over the image divided by 1, 2, 4, 8 and 16."""
    return ThroughView(inner, ScaleInvariant(copies), "si")


@catalogued(paper="Wang et al., ICCV 2021", quick="admix(pgd(steps=3), others=2, scales=2)")
def admix(inner: Attack, *, others: int = 3, strength: float = 0.2, scales: int = 5) -> ThroughView:
    """Admix: the mean loss over the image with a fifth of 3 others added in turn, each sum at 5 scales as in si.

    The others are drawn from 16 calibration images, where the authors take them from the batch: an image is attacked alike in
    any batch. Without calibration images each image is mixed with its own mirror image, and a doubt says so.
    """
    return ThroughView(inner, Admixed(others, strength, scales), "admix")


@catalogued(paper="Wei et al., AAAI 2022", quick="patchout(pgd(steps=3))")
def patchout(
    inner: Attack, *, share: float = 130 / 196, side: int | None = None, norm_weight: float = 0.1
) -> ThroughView:
    """PatchOut: each step sees the perturbation in 2/3 of the square patches; the loss has its l2 norm times 0.1 added.

    Patches are a fourteenth of the image wide, as 16 of 224 pixels, unless `side` says otherwise.
    """
    return ThroughView(inner, PatchOut(share, side, norm_weight), "patchout")
