"""Digest of a model: equal for equal functions, and for nothing else."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vitattack.models.digest import fingerprint
from vitattack.models.victim import model_digest

SCALE = [2.0]


class Toy(nn.Module):
    """A classifier with one attribute of any kind."""

    def __init__(self, setting: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(3, 2)
        self.setting = setting

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


class Settings:
    def __init__(self, temperature: float) -> None:
        self.temperature = temperature


def hidden(weight: float) -> list[nn.Module]:
    layer = nn.Linear(1, 1)
    nn.init.constant_(layer.weight, weight)
    nn.init.zeros_(layer.bias)
    return [layer]


def squared(factor: float) -> Callable[[float], float]:
    return lambda value: factor * value**2


PAIRS: dict[str, tuple[Any, Any]] = {
    "a list": ([0.5, 0.5], [0.4, 0.5]),
    "a nested list": ([[1, [2]]], [[1, [3]]]),
    "a dict": ({"mean": [0.5]}, {"mean": [0.4]}),
    "a set": ({1, 2}, {1, 3}),
    "a tensor": (torch.ones(3), torch.zeros(3)),
    "a tensor of another dtype": (torch.ones(3), torch.ones(3).double()),
    "an array": (np.ones(3), np.zeros(3)),
    "an array in a dict": ({"a": np.ones(3)}, {"a": np.zeros(3)}),
    "an object": (Settings(1.0), Settings(2.0)),
    "a hidden module": (hidden(1.0), hidden(2.0)),
    "a function": (torch.relu, torch.tanh),
    "a lambda": (lambda v: v + 1, lambda v: v + 2),
    "a closure": (squared(1.0), squared(2.0)),
    "a partial": (partial(torch.clamp, min=0), partial(torch.clamp, min=1)),
    "a namespace": (types.SimpleNamespace(a=[1]), types.SimpleNamespace(a=[2])),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_a_digest_sees_attributes_of_every_kind(kind: str) -> None:
    one, other = PAIRS[kind]
    assert model_digest(Toy(one)) != model_digest(Toy(other))
    assert model_digest(Toy(one)) == model_digest(Toy(one))


def defined(body: str, extra: str = "") -> nn.Module:
    """A model as a user's file defines it."""
    source = f"""
import torch
from torch import nn
MEAN = [0.5]
{extra}
def helper(x):
    return x * MEAN[0]
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(3, 2)
    def inner(self, x):
        return self.head(x.mean((2, 3)))
    def forward(self, x):
        {body}
"""
    module = types.ModuleType("user_file")
    exec(compile(source, "user_file.py", "exec"), vars(module))
    net: nn.Module = module.Net()
    return net


BODY = "return self.inner(helper(x))"


def test_a_digest_sees_code() -> None:
    plain = model_digest(defined(BODY))
    assert plain == model_digest(defined(BODY))
    assert plain == model_digest(defined(BODY + "  # a comment", "# another"))
    assert plain != model_digest(defined("return self.inner(helper(x)) * 2"))
    assert plain != model_digest(defined(BODY, "MEAN = [0.4]"))


def test_a_digest_sees_a_global_and_the_code_of_a_helper() -> None:
    def changed(name: str, value: Any) -> nn.Module:
        net = defined(BODY)
        type(net).forward.__globals__[name] = value
        return net

    plain = model_digest(defined(BODY))
    assert plain != model_digest(changed("MEAN", [0.25]))
    assert plain != model_digest(changed("helper", lambda x: x * 3))


def test_a_digest_sees_hooks_and_replaced_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, hooked, replaced = Toy(), Toy(), Toy()
    before = model_digest(plain)
    hooked.head.register_forward_hook(lambda module, args, out: out * 2)
    assert model_digest(hooked) != before
    replaced.forward = types.MethodType(lambda self, x: self.head(x.mean((2, 3))) * 2, replaced)  # type: ignore[method-assign]
    assert model_digest(replaced) != before
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: x @ self.weight.T)
    assert model_digest(plain) != before


def test_objects_that_hold_each_other_end() -> None:
    one, other = Toy(), Toy()
    for net in (one, other):
        loop: list[Any] = [net]
        loop.append(loop)
        net.setting = {"all": loop, "me": net.forward}
    assert model_digest(one) == model_digest(other)


def test_a_digest_stays_with_a_copy_and_a_forward() -> None:
    import copy

    net = Toy({"a": [torch.ones(2)]})
    before = model_digest(net)
    with torch.no_grad():
        net(torch.rand(2, 3, 4, 4))
    assert model_digest(net) == before == model_digest(copy.deepcopy(net)) == model_digest(net.train())


def test_what_has_no_digest_is_named() -> None:
    from vitattack.models.digest import fingerprint

    assert fingerprint(Toy([1])).unknown == ()
    found = fingerprint(Toy({"lock": threading.Lock()})).unknown
    assert len(found) == 1 and "setting" in found[0] and "lock" in found[0]


class Chain(nn.Module):
    """Many operations in a row, and a factor that a trace writes into its graph."""

    def __init__(self, factor: float = 2.0) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)
        nn.init.ones_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(400):
            x = x * self.factor
        y: Tensor = torch.relu(self.head(x))
        return y


def test_a_graph_of_fx_is_hashed_by_its_operations() -> None:
    one, same, other = (torch.fx.symbolic_trace(Chain(factor)) for factor in (2.0, 2.0, 3.0))
    assert fingerprint(one) == fingerprint(same) and fingerprint(one).unknown == ()
    assert fingerprint(one).digest != fingerprint(other).digest
    for node in same.graph.nodes:
        if node.target is torch.relu:
            node.target = torch.tanh
    same.recompile()
    assert fingerprint(one).digest != fingerprint(same).digest


def test_what_is_nested_without_end_is_named_as_unknown() -> None:
    module = nn.Linear(2, 2)
    nested: list[Any] = []
    for _ in range(5000):
        nested = [nested]
    module.nested = nested  # type: ignore[assignment]
    found = fingerprint(module)
    assert len(found.unknown) == 1 and found.unknown[0].startswith("Linear.nested")
