"""One clean forward where a step wants two: for the target of its inner attack and for a term of its loss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vitattack.models.base import Attackable


@contextmanager
def shared_clean_forward(victim: Attackable, x: Tensor) -> Iterator[None]:
    """Answer `victim(x)`, for this very tensor, from a single forward made on entry in the victim's present mode.

    In training mode the answer carries its graph. In eval mode it is given detached, provided the forward drew no random
    number: then the model has no dropout and both modes compute the same function. A model with batch statistics is left
    alone, since its forward changes the answers of eval mode. The weights must not change before the graph is used;
    copies of the victim answer for it meanwhile.
    """
    if batch_statistics(victim):
        yield
        return
    forward, training = victim.forward, victim.training
    before = _generator_states(x)
    answer: Tensor = forward(x)
    modes_agree = _generator_states(x) == before

    def shared(images: Tensor) -> Tensor:
        if images is x and torch.is_grad_enabled() and victim.training == training:
            return answer
        if images is x and not torch.is_grad_enabled() and modes_agree:
            return answer.detach()
        logits: Tensor = forward(images)
        return logits

    own = vars(victim).get("forward")
    vars(victim)["forward"] = shared  # looked up before the method of the class; the module's hooks stay in force
    try:
        yield
    finally:
        del vars(victim)["forward"]
        if own is not None:
            vars(victim)["forward"] = own


def batch_statistics(module: nn.Module) -> list[Tensor]:
    """Buffers that forwards in training mode write."""
    return [b for name, b in module.named_buffers() if name.endswith(("running_mean", "running_var"))]


def _generator_states(x: Tensor) -> tuple[bytes, ...]:
    """States of the generators that a forward on the device of x may draw from."""
    states = [torch.get_rng_state()]
    if x.device.type != "cpu":
        generators: Any = torch.get_device_module(x.device)
        states.append(generators.get_rng_state(*[x.device] * (x.device.type != "mps")))  # mps has only one
    return tuple(state.numpy().tobytes() for state in states)
