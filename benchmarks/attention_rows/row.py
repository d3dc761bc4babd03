"""One architecture of the coverage table, and what has to hold for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack

from vitattack.models.attention.attention_map import AttentionMap
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.attention.rescaled import Rescaled
from vitattack.models.attention.tap import AttentionTap, Seen
from vitattack.models.victim import Victim, frozen


@dataclass(frozen=True)
class Row:
    """A model with random weights, and its attention layers counted by hand."""

    library: str
    name: str
    build: Callable[[], nn.Module]
    layers: int
    why: str  # where the number comes from, or why there is none
    size: int = 32
    ignored: int | None = None  # softmaxes that are no attention; None where nobody counted
    mixes_batch: bool = False
    base: float = 1.0  # scale at which scores are halved, where those of random weights saturate
    without_effect: tuple[int, ...] = ()  # layers that weigh equal values
    draws: bool = False  # its forward draws random numbers
    unseen: str = ""  # why not all of it is found
    no_gradient: str = ""  # why torch cannot differentiate it here


class Taken(nn.Module):
    """A model whose images or outputs have another shape: both are changed by a function."""

    def __init__(
        self,
        model: nn.Module,
        given: Callable[[Tensor], Any] | None = None,
        taken: Callable[[Any], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.inner, self.given, self.taken = model, given, taken

    def forward(self, x: Tensor) -> Any:
        given = x if self.given is None else self.given(x)
        out = self.inner(**given) if isinstance(given, dict) else self.inner(given)
        return out if self.taken is None else self.taken(out)


class Seeded(nn.Module):
    """A model that draws the same numbers in every forward."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner = model

    def forward(self, x: Tensor) -> Any:
        torch.manual_seed(5)
        return self.inner(x)


def awake(model: nn.Module) -> nn.Module:
    """Random values where an initialisation puts (almost) zeros, which would hide a branch and all that happens in it."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point() and parameter.numel() and float(parameter.abs().max()) < 0.01:
                parameter.copy_(torch.rand(parameter.shape, generator=generator) * 0.4 + 0.1)
    return model.eval()


def check(row: Row, *, each_layer: bool = True) -> AttentionMap:
    """Assert all that holds for a model whose attention is seen whole; returns what was found.

    Halving the scores of each layer by itself has to change the logits, or, which is faster, of all together.
    """
    torch.manual_seed(0)
    model = awake(row.build())
    victim = Victim(Seeded(model) if row.draws else model, name=row.name, num_classes=10, input_size=row.size)
    x = torch.rand(2, 3, row.size, row.size, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        victim(x[:1])  # some register hooks of their own in their first forward
    hooks = _hooks(victim)
    found = attention_layers(victim, x[:1])
    assert len(found) == row.layers, f"{len(found)} layers found"
    assert row.ignored in (None, len(found.ignored)), f"{len(found.ignored)} softmaxes ignored"
    assert _hooks(victim) == hooks, "a hook is left behind"
    if not found:
        return found
    modules = dict(victim.named_modules())
    assert all(layer.name in modules and layer.block in modules for layer in found.layers)
    assert all(layer.name.startswith(layer.block) for layer in found.layers), "a layer outside its block"
    _check_scores(victim, found, x, row)
    _check_scales(victim, found, x, row, each_layer)
    if not row.no_gradient:
        _check_gradients(victim, found, x, row)
    assert not _get_current_function_mode_stack(), "a tap is left behind"
    return found


def _hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def _check_scores(victim: Victim, found: AttentionMap, x: Tensor, row: Row) -> None:
    seen: list[tuple[float, bool]] = []

    def observe(one: Seen) -> None:
        scores, exact = one.scores(), one.scores(torch.float64)
        free = torch.ones_like(exact, dtype=torch.bool) if one.masked() is None else ~one.masked()
        gap = (scores.double() - exact)[free].abs().max() / (1 + exact[free].abs().max())
        seen.append((float(gap), one.by_head(scores).shape[0] == one.layer.heads))

    with frozen(victim), torch.no_grad(), AttentionTap(found, observe=observe):
        victim(x[:1])
    assert len(seen) == len(found), f"{len(seen)} softmaxes observed"
    assert max(gap for gap, _ in seen) < 1e-4, "scores in float64 are others"
    assert all(heads for _, heads in seen), "heads are not those of the scores"


def _check_scales(victim: Victim, found: AttentionMap, x: Tensor, row: Row, each_layer: bool) -> None:
    ones = torch.ones(len(found))
    with frozen(victim), torch.no_grad():
        plain = victim(x[:1])
        assert torch.equal(Rescaled(victim, ones, layers=found)(x[:1]), plain), "s = 1 is not the identity"
        single = [[number] for number in range(len(found)) if number not in row.without_effect]
        whole = plain if row.base == 1 else Rescaled(victim, ones * row.base, layers=found)(x[:1])
        for chosen in single if each_layer else [list(range(len(found)))]:
            scales = ones * row.base
            scales[chosen] *= 0.5
            halved = Rescaled(victim, scales, layers=found)(x[:1])
            assert not torch.equal(halved, whole), f"s = 0.5 changes nothing in layers {chosen}"
        assert torch.equal(victim(x[:1]), plain), "the model itself has changed"
        if not row.mixes_batch:
            per_sample = torch.ones(2, len(found))
            per_sample[0] = 0.5
            both, mixed = victim(x), Rescaled(victim, per_sample, per="sample", layers=found)(x)
            effect, leak = (float((both - mixed)[n].abs().max()) for n in (0, 1))
            # not always to the bit: a position bias that differs between samples makes torch choose another kernel
            assert effect > 0 and leak <= 0.01 * effect, "a sample's scale reaches another sample"


def _check_gradients(victim: Victim, found: AttentionMap, x: Tensor, row: Row) -> None:
    # at 0.001: visformer with random weights has scores of 500,000, whose gradient underflows at 1
    scales = torch.full((len(found),), 1e-3, requires_grad=True)
    heads = torch.full((len(found), max(layer.heads for layer in found.layers)), 1e-3, requires_grad=True)
    with frozen(victim):
        (grad,) = torch.autograd.grad(_sum(Rescaled(victim, scales, layers=found)(x[:1])), scales)
        (of_heads,) = torch.autograd.grad(_sum(Rescaled(victim, heads, per="head", layers=found)(x[:1])), heads)
    missing = set((grad == 0).nonzero().flatten().tolist()) - set(row.without_effect)
    assert not missing, f"no gradient reaches the scales {sorted(missing)}"
    assert torch.allclose(of_heads.sum(1), grad, rtol=1e-2, atol=1e-4 * float(grad.abs().max())), "heads do not add up"


def _sum(logits: Tensor) -> Tensor:
    weights = torch.rand(logits.shape, generator=torch.Generator().manual_seed(3))
    return (logits * weights).sum()
