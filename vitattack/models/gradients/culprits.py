"""Culprits: the parts of a model that make its gradient untrustworthy, found by measuring each of them alone.

A module is a culprit if its output changes otherwise than its own gradient predicts when its input changes as it does
under a small perturbation of the images. The front of a model is whatever happens to the images before a module first
receives something of their shape that is not the images themselves.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitattack.models.gradients.agreement import agreement
from vitattack.models.victim import Victim

AGREES = 0.5  # least share of a module's change that its gradient has to predict
PROJECTIONS = 4  # random directions in which outputs are compared


class _Call(NamedTuple):
    """One call of a module: its positional inputs and its output."""

    given: tuple[Any, ...]
    out: Tensor


def front(victim: Victim, x: Tensor) -> str | None:
    """The name of the first module that receives transformed images, if any does."""
    for name, call in _calls(victim, x).items():
        if name and call.given[0].shape == x.shape and not _is_affine(x, call.given[0]):
            return name
    return None


def _is_affine(x: Tensor, source: Tensor) -> bool:
    """Whether every channel is the images' own, but for a factor and an offset: normalised images are still the images."""
    old, new = (each.movedim(1, 0).flatten(1).double() for each in (x, source))
    old, new = old - old.mean(1, keepdim=True), new - new.mean(1, keepdim=True)
    slope = (old * new).sum(1, keepdim=True) / (old * old).sum(1, keepdim=True).clamp_min(1e-12)
    return bool((new - slope * old).abs().amax() <= 1e-4 * new.abs().amax())


def culprits(victim: Victim, x: Tensor, moved: Tensor) -> tuple[str, ...]:
    """Classes of modules with outputs in the shape of their inputs that do not do what their gradients promise."""
    before, after = _calls(victim, x), _calls(victim, moved)
    names = [
        name
        for name, call in before.items()
        if name and name in after and call.out.shape == call.given[0].shape and call.given[0].is_floating_point()
    ]
    found: list[str] = []
    for name in sorted(names, key=lambda each: -each.count(".")):  # innermost first: what holds a culprit is none
        holds_one = any(inner.startswith(f"{name}.") for inner in found)
        if not holds_one and _fidelity(victim.get_submodule(name), before[name], after[name]) < AGREES:
            found.append(name)
    return tuple(dict.fromkeys(type(victim.get_submodule(name)).__name__ for name in found))


def _calls(victim: Victim, x: Tensor) -> dict[str, _Call]:
    """The first call of every module in order, with a tensor as its first input and its output."""
    calls: dict[str, _Call] = {}
    hooks = []
    for name, module in victim.named_modules():

        def note(_: nn.Module, given: tuple[Any, ...], name: str = name) -> None:
            if name not in calls and given and isinstance(given[0], Tensor):
                calls[name] = _Call(tuple(given), given[0].new_empty(0))

        def complete(_: nn.Module, given: tuple[Any, ...], out: object, name: str = name) -> None:
            if isinstance(out, Tensor) and name in calls and not calls[name].out.numel():
                calls[name] = calls[name]._replace(out=out)

        hooks += [module.register_forward_pre_hook(note), module.register_forward_hook(complete)]
    try:
        with torch.no_grad():
            victim(x)
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def _fidelity(module: nn.Module, before: _Call, after: _Call) -> float:
    """Agreement between the change of a module's output and what its gradient predicts of it; the median over images."""
    source = before.given[0].detach().clone().requires_grad_()
    try:
        with torch.enable_grad():
            out = module(source, *before.given[1:])
    except Exception:  # noqa: BLE001 - some modules only work inside their model
        return 1.0
    change = (after.out - before.out).flatten(1)
    if not isinstance(out, Tensor) or out.shape != before.out.shape or not bool(change.any()):
        return 1.0
    if not out.requires_grad:
        return 0.0
    draws = torch.Generator(device="cpu").manual_seed(0)
    found = []
    for _ in range(PROJECTIONS):
        weights = torch.randn(out.shape[1:], generator=draws).to(out)
        (grad,) = torch.autograd.grad((out * weights).sum(), source, retain_graph=True, allow_unused=True)
        if grad is None:
            return 0.0
        predicted = (grad * (after.given[0] - source.detach())).flatten(1).sum(1)
        actual = (change * weights.flatten()).sum(1)
        found.append(agreement(predicted, actual))
    return float(torch.stack(found).median())
