"""Tokens of a model, by probing: how many precede the patches, where patches lie in the image, which one the head reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitattack.models.victim import Victim, frozen


@dataclass(frozen=True)
class Tokens:
    """The tokens that a block is given: (B, prefix + rows * columns, D), or (B, rows, columns, D) without prefix."""

    prefix: int
    grid: tuple[int, int]
    class_token: int | None = None  # the prefix token that the head reads

    @property
    def count(self) -> int:
        return self.prefix + self.grid[0] * self.grid[1]


@contextmanager
def _kept(victim: nn.Module, names: Sequence[str]) -> Iterator[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """Inputs and outputs of modules during forwards."""
    modules = dict(victim.named_modules())
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}

    def before(name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            inputs[name] = next(value for value in [*args, *kwargs.values()] if isinstance(value, Tensor))

        return hook

    def after(name: str) -> Any:
        def hook(module: nn.Module, args: Any, out: Any) -> None:
            outputs[name] = out if isinstance(out, Tensor) else out[0]

        return hook

    handles = [modules[name].register_forward_pre_hook(before(name), with_kwargs=True) for name in names]
    handles += [modules[name].register_forward_hook(after(name)) for name in names]
    try:
        yield inputs, outputs
    finally:
        for handle in handles:
            handle.remove()


def block_tokens(victim: Victim, blocks: Sequence[str]) -> dict[str, Tokens | None]:
    """The tokens of each block, in call order; None where they do not lie on a grid in the order of the image.

    Prefix tokens are those that are equal for two images where they first appear. The order is that of the image if a
    change of the pixels at two corners changes the tokens there most.
    """
    height, width = victim.size
    x = _probes(victim)
    with frozen(victim), torch.no_grad(), _kept(victim, blocks) as (inputs, _):
        victim(x)
        # Outputs may be the next inputs, changed in place later: what was given is compared at once.
        given = {name: value.detach().clone() for name, value in inputs.items()}
    found: dict[str, Tokens | None] = {}
    prefix, count = 0, -1
    for name in blocks:
        tokens = given.get(name)
        if tokens is None or tokens.dim() not in (3, 4) or len(tokens) != len(x):
            found[name] = None
            continue
        if tokens.dim() == 4:
            found[name] = _checked(tokens.flatten(1, 2), Tokens(0, (tokens.shape[1], tokens.shape[2])))
            continue
        if tokens.shape[1] != count:
            count, prefix = tokens.shape[1], _constant_tokens(tokens)
        grid = _grid(count - prefix, height, width)
        found[name] = None if grid is None else Tokens(prefix, grid)
    first = next((name for name in blocks if found[name] is not None and given[name].dim() == 3), None)
    if first is not None:
        known = found[first]
        if known is not None and _checked(given[first], known) is None:
            return dict.fromkeys(blocks)
    return _with_class_token(victim, blocks, found)


def _probes(victim: Victim) -> Tensor:
    """A random image, the same one with its upper right and its lower left corner changed, and another one."""
    height, width = victim.size
    generator = torch.Generator().manual_seed(0)
    one, other = torch.rand(2, victim.channels, height, width, generator=generator).to(victim.grey())
    right, below = one.clone(), one.clone()
    rows, columns = max(1, height // 16), max(1, width // 16)
    right[:, :rows, -columns:] = 1 - right[:, :rows, -columns:].round()
    below[:, -rows:, :columns] = 1 - below[:, -rows:, :columns].round()
    return torch.stack([one, right, below, other])


def _constant_tokens(tokens: Tensor) -> int:
    """Leading tokens that two images share."""
    same = (tokens[0] == tokens[3]).all(-1)
    return int(same.long().cumprod(0).sum())


def _grid(count: int, height: int, width: int) -> tuple[int, int] | None:
    """Rows and columns of so many patches, in the ratio of the image."""
    rows = round((count * height / width) ** 0.5)
    return (rows, count // rows) if rows > 0 and count % rows == 0 and rows * width == count // rows * height else None


def _checked(tokens: Tensor, known: Tokens) -> Tokens | None:
    rows, columns = known.grid
    changed = (tokens[1:3] - tokens[:1]).norm(dim=-1)[:, known.prefix :].argmax(1).tolist()
    return known if changed == [columns - 1, (rows - 1) * columns] else None


def _with_class_token(
    victim: Victim, blocks: Sequence[str], found: dict[str, Tokens | None]
) -> dict[str, Tokens | None]:
    """Tokens with the prefix token that the logits depend on behind the last block, if they depend on one."""
    last = blocks[-1]
    tokens = found[last]
    if tokens is None or not tokens.prefix:
        return found
    x = torch.rand(1, victim.channels, *victim.size, generator=torch.Generator().manual_seed(1)).to(victim.grey())
    with frozen(victim), torch.enable_grad(), _kept(victim, blocks[-1:]) as (_, outputs):
        logits = victim(x.requires_grad_())
        out = outputs[last]
        weights = torch.linspace(-1, 1, logits.shape[1], device=logits.device)
        (gradient,) = torch.autograd.grad((logits * weights).sum(), out, allow_unused=True)
    if gradient is None or gradient.dim() != 3 or gradient.shape[1] != tokens.count:
        return found
    read = gradient[0, : tokens.prefix].abs().amax(-1) > 0
    if not bool(read.any()):
        return found
    at = int(read.long().argmax())
    return {
        name: Tokens(each.prefix, each.grid, at if each.prefix > at else None) if each is not None else None
        for name, each in found.items()
    }
