"""Side-by-side timing: interleaved rounds in one process, and their medians."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping

import timm
import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from vitattack.models.victim import Victim, frozen


def arguments(doc: str | None, rounds: int) -> argparse.ArgumentParser:
    """Options shared by all timing scripts."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--threads", type=int, default=1)
    return parser


def interleaved(ways: Mapping[str, Callable[[], object]], rounds: int, warm: bool = True) -> dict[str, list[float]]:
    """Seconds per round of each function, in rotating order, after one run each to warm up."""
    for way in ways.values() if warm else ():
        way()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            began = time.perf_counter()
            ways[name]()
            seconds[name].append(time.perf_counter() - began)
    return seconds


def median(values: list[float]) -> float:
    return statistics.median(values)


def small32() -> Victim:
    """A ViT for 32 px images: patch 4, width 192, depth 6, random weights."""
    torch.manual_seed(0)
    model = VisionTransformer(img_size=32, patch_size=4, embed_dim=192, depth=6, num_heads=3, num_classes=10)
    return Victim(model, name="small32", num_classes=10, input_size=32).eval()


def tiny224() -> Victim:
    """timm's ViT-Tiny for 224 px images, random weights."""
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False)
    return Victim(model, name="tiny224", num_classes=1000, input_size=224).eval()


def raw_steps(module: nn.Module, victim: Victim, x: Tensor, y: Tensor, count: int = 1) -> None:
    """Run forwards of a module, each with the gradient of its input alone; the victim's parameters are frozen."""
    with frozen(victim):
        for _ in range(count):
            leaf = x.detach().requires_grad_()
            torch.autograd.grad(F.cross_entropy(module(leaf), y, reduction="sum"), leaf)


def conditions(threads: int) -> str:
    capability = torch.backends.cpu.get_cpu_capability()
    return f"torch {torch.__version__}, timm {timm.__version__}, fp32, {threads} thread(s), CPU {capability}"
