"""One clean forward where a step wants two: the target of its inner attack and a term of its loss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def answered_once(victim: nn.Module, x: Tensor) -> Iterator[None]:
    """Within it, `victim(x)` for this very tensor is the answer of one forward, made now, in the mode the victim is in.

    In training mode that answer has its graph. In eval mode it is given without, if the forward drew no random number:
    then the model has no dropout, and its two modes are taken for one function. A model with statistics of batches is left
    alone, as its forward changes what eval mode answers. The weights must not change before the graph is used, and copies
    of the victim answer for it as long.
    """
    if statistics(victim):
        yield
        return
    ask, training = victim.forward, victim.training
    before = _random_states(x)
    answer: Tensor = ask(x)
    modes_agree = _random_states(x) == before

    def recall(images: Tensor) -> Tensor:
        if images is x and torch.is_grad_enabled() and victim.training == training:
            return answer
        if images is x and not torch.is_grad_enabled() and modes_agree:
            return answer.detach()
        given: Tensor = ask(images)
        return given

    own = vars(victim).get("forward")
    vars(victim)["forward"] = recall  # found before the method of the class; hooks of the module stay in force
    try:
        yield
    finally:
        del vars(victim)["forward"]
        if own is not None:
            vars(victim)["forward"] = own


def statistics(module: nn.Module) -> list[Tensor]:
    """The buffers that forwards in training mode write."""
    return [b for name, b in module.named_buffers() if name.endswith(("running_mean", "running_var"))]


def _random_states(x: Tensor) -> tuple[bytes, ...]:
    """Of the generators that a forward on the device of x may draw from."""
    states = [torch.get_rng_state()]
    if x.device.type != "cpu":
        generators: Any = torch.get_device_module(x.device)
        states.append(generators.get_rng_state(*[x.device] * (x.device.type != "mps")))  # of those there is one
    return tuple(state.numpy().tobytes() for state in states)
