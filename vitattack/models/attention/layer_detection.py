"""Detection of attention layers: which softmaxes of one forward weigh values, and which of them reach the logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vitattack.models.attention.attention_map import AttentionMap
from vitattack.models.attention.functions import EXPONENTIALS
from vitattack.models.attention.sample_axes import with_head_order
from vitattack.models.attention.softmax_mode import SoftmaxMode
from vitattack.models.attention.softmax_trace import SoftmaxTrace
from vitattack.models.attention.unseen import unseen_modules
from vitattack.models.base import Attackable
from vitattack.models.victim import frozen


def attention_layers(victim: nn.Module, x: Tensor) -> AttentionMap:
    """Find the attention softmaxes of a model in call order, from one forward of the first image of x.

    Heads that are folded into the axis of the images cost three more forwards, of two images.

    A softmax is attention if its output, dropout aside, is multiplied with values over the axis it normalised. Weights
    of branches (split attention, selective kernels) sum over a front axis, and the weights of a global context are a
    linear map of the tensor they weigh: both are ignored, like class probabilities.
    """
    modules = dict(victim.named_modules())
    probe, unused = _probed(victim, x[:1], modules)
    for number in unused:
        probe.calls[number].kind, probe.calls[number].reason = None, "unused: it never reaches the logits"
    name = (isinstance(victim, Attackable) and victim.name) or type(victim).__name__
    return with_head_order(probe.attention_map(name, unseen_modules(modules)), victim, x)


def _probed(victim: nn.Module, x: Tensor, modules: Mapping[str, nn.Module]) -> tuple[SoftmaxTrace, set[int]]:
    """The probe after its forward, and the calls that have no path to the logits.

    Autograd follows the paths, without a backward. Where it finds none, the model may have cut its graph: a softmax is
    unused only if the logits stay the same to the bit with its output set to zero.
    """
    probe = SoftmaxTrace(modules, len(x))
    before = {id(value) for module in modules.values() for value in vars(module).values() if isinstance(value, Tensor)}
    try:
        with frozen(victim), torch.enable_grad(), probe.hooked(), probe:
            logits = victim(x)
    except (RuntimeError, TypeError):  # a model that cannot run under autograd
        probe = SoftmaxTrace(modules, len(x))
        with frozen(victim), torch.no_grad(), probe.hooked(), probe:
            logits = victim(x)
    reached = _leaves(logits) if isinstance(logits, Tensor) else {id(mark) for mark in probe.marks}
    for module in modules.values():  # what a model keeps of its forward must not keep the graph, which cannot be copied
        for name, value in list(vars(module).items()):
            if id(value) not in before:
                vars(module)[name] = _without_graph(value)
    suspects = [call for call, mark in enumerate(probe.marks) if id(mark) not in reached and probe.calls[call].kind]
    if not suspects or any(weight.is_meta for weight in victim.parameters()):  # shapes alone say nothing of paths
        return probe, set()
    with frozen(victim), torch.no_grad(), Silenced(set()):
        plain = victim(x)

    def without(calls: set[int]) -> bool:
        with frozen(victim), torch.no_grad(), Silenced(calls):
            return torch.equal(victim(x), plain)

    return probe, set(suspects) if without(set(suspects)) else {call for call in suspects if without({call})}


def _without_graph(value: Any, depth: int = 3) -> Any:
    """The value with its tensors detached from autograd's graph; lists and dicts are changed in place."""
    if isinstance(value, Tensor):
        return value.detach() if value.grad_fn is not None else value
    if depth == 0:
        return value
    if type(value) is list:
        value[:] = [_without_graph(item, depth - 1) for item in value]
    elif type(value) is dict:
        for key, item in value.items():
            value[key] = _without_graph(item, depth - 1)
    elif type(value) is tuple:
        return tuple(_without_graph(item, depth - 1) for item in value)
    return value


def _leaves(logits: Tensor) -> set[int]:
    """Ids of the leaves of autograd's graph of some logits."""
    found: set[int] = set()
    seen: set[Any] = set()
    ahead: list[Any] = [logits.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):  # AccumulateGrad
            found.add(id(node.variable))
        ahead += [following for following, _ in node.next_functions]
    return found


class Silenced(SoftmaxMode):
    """The model with the outputs of some softmaxes set to zero, and with other values for some exponentials."""

    def __init__(self, calls: set[int]) -> None:
        super().__init__(exponentials=True)
        self._calls = calls

    def softmax(self, call: int, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        out = func(*args, **kwargs)
        if call not in self._calls:
            return out
        if isinstance(out, tuple):
            return (torch.zeros_like(out[0]), *out[1:])
        if name not in EXPONENTIALS:
            return torch.zeros_like(out)
        uneven = 1 + torch.arange(out.numel(), device=out.device).view(out.shape) % 3
        return out.mul_(uneven) if out is args[0] else out * uneven
