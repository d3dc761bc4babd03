"""Doubts beside a number."""

from __future__ import annotations

import cProfile
import sys

import torch
from torch import Tensor

import vitattack
from tests.conftest import tiny_vit, toy_pictures
from vitattack.evaluation.doubts import unverified_doubts

Images = tuple[Tensor, Tensor]


def test_unconfirmed_preprocessing_of_a_zoo_entry_is_doubted() -> None:
    (line,) = unverified_doubts({"unverified": ["arch", "normalize", "transform"]})
    assert "the normalize and transform of this zoo entry" in line
    assert unverified_doubts({"unverified": ["arch", "threat"]}) == unverified_doubts({}) == []


def test_a_model_that_differentiates_inside_its_forward_is_doubted(toy_images: Images) -> None:
    class Adaptive(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                z = x.detach().requires_grad_()
                (grad,) = torch.autograd.grad(z.square().sum(), z)
            return (x - 0.01 * grad).flatten(1)[:, :10]

    x, _ = toy_images
    y = Adaptive()(x).argmax(1)
    doubted = vitattack.evaluate(Adaptive(), "random", data=(x, y), threads=1).doubts
    assert any("differentiates inside its own forward" in doubt for doubt in doubted)
    plain = vitattack.evaluate(torch.nn.Flatten(), "random", data=(x, x.flatten(1).argmax(1)), threads=1).doubts
    assert not any("differentiates" in doubt for doubt in plain)


def test_a_profiled_run_is_left_to_its_profiler() -> None:
    """cProfile of Python 3.11 is no callable that could be put back; later ones do not use sys.setprofile."""
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        found = vitattack.evaluate(tiny_vit(), "fgsm", data=(toy_pictures(2), torch.zeros(2).long()), threads=1)
        kept = sys.getprofile()
    finally:
        profiler.disable()
    assert found.results[0].n == 2 and (kept is profiler or sys.version_info >= (3, 12))
