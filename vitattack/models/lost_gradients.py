"""Models whose logits have no gradient: whether, and in which module, it is cut or vanishes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vitattack.core.errors import UsageError, first_line
from vitattack.core.runtime import out_of_memory
from vitattack.models.passes import Passes
from vitattack.models.victim import frozen

Cause = Literal["cut", "refused", "zero"]


class NoGradient(UsageError):
    """A model that an attack cannot differentiate."""


@dataclass(frozen=True)
class LostGradient:
    """Why the pixels get no gradient: the graph is `cut`, the model has `refused` to run under autograd, or all is `zero`."""

    cause: Cause
    where: str  # e.g. "in 'jpeg' (JPEG)"; empty if no module is known
    reason: str = ""

    def __str__(self) -> str:
        place = f" {self.where}" if self.where else ""
        if self.cause == "refused":
            return f"it cannot run under autograd{place} ({self.reason})"
        if self.cause == "zero":
            return f"the gradient becomes zero{place}"
        return f"the graph is cut{place}" + (f", {self.reason}" if self.reason else "")


@contextmanager
def lost_gradients_named(model: nn.Module, x: Tensor) -> Iterator[None]:
    """Raise `NoGradient` with the cause in place of an error of autograd that the model is the reason for."""
    try:
        yield
    except (RuntimeError, TypeError) as error:
        lost = None if out_of_memory(error) else find_lost_gradient(model, x)
        if lost is None or lost.cause == "zero":  # a zero gradient is one, and raises nothing
            raise
        raise no_gradient(model, lost) from error


def require_gradient(model: nn.Module, x: Tensor, passes: Passes) -> None:
    """Refuse what an attack made of a model without gradients: some follow the gradient of a distance alone."""
    lost = find_lost_gradient(model, x) if passes.cut else None
    if lost is not None and lost.cause != "zero":
        raise no_gradient(model, lost)


def no_gradient(model: nn.Module, lost: LostGradient) -> NoGradient:
    """Return the error for an attack that needs a gradient."""
    return NoGradient(
        f"{named_model(model)} gives no gradient: {lost}; attack it by its logits alone with square, or with auto, "
        "which goes on without gradients"
    )


def named_model(model: nn.Module) -> str:
    name = getattr(model, "name", "")
    return f"model '{name}'" if isinstance(name, str) and name else f"model '{type(model).__name__}'"


def find_lost_gradient(model: nn.Module, x: Tensor) -> LostGradient | None:
    """Return what keeps gradients of the logits from the pixels of x; None if any reaches them."""
    # Of the leaf itself, as in an attack: an in-place change of it is refused.
    leaf = x.detach().clone().requires_grad_()
    trace = _Trace(dict(model.named_modules()))
    with frozen(model), torch.enable_grad():
        try:
            with trace.hooked():
                logits = model(leaf)
        except (RuntimeError, TypeError) as error:
            return LostGradient("refused", trace.where(), first_line(error)) if _runs_without(model, x) else None
        if not logits.requires_grad:
            return trace.cut()
        weights = torch.linspace(-1, 1, logits.shape[-1], dtype=logits.dtype, device=logits.device)
        passed = [tensor for exit in trace.exits for tensor in (*exit.given, *exit.returned)]
        try:
            found: Sequence[Tensor | None] = torch.autograd.grad(
                (logits * weights).sum(), [leaf, *passed], allow_unused=True
            )
        except RuntimeError as error:
            return LostGradient("refused", "", first_line(error))
    if found[0] is None:
        return trace.cut()
    return None if bool(found[0].any()) else LostGradient("zero", trace.vanishing(found[1:]))


def _runs_without(model: nn.Module, x: Tensor) -> bool:
    try:
        with frozen(model), torch.no_grad():
            model(x.detach().clone())
    except (RuntimeError, TypeError):
        return False
    return True


@dataclass(frozen=True)
class _Exit:
    """A module that has run: the tensors under autograd that it was given and that it returned."""

    name: str
    given: tuple[Tensor, ...]
    returned: tuple[Tensor, ...]


class _Trace:
    """Modules in the order in which they return, innermost first."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._modules = modules
        self._running: list[str] = []
        self.exits: list[_Exit] = []
        self._without: str | None = None  # the module that first switches autograd off for those inside it

    @contextmanager
    def hooked(self) -> Iterator[None]:
        handles = []
        for name, module in self._modules.items():
            handles.append(module.register_forward_pre_hook(lambda _, __, name=name: self._enter(name)))
            handles.append(module.register_forward_hook(lambda _, given, out: self._leave(given, out)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, name: str) -> None:
        if not torch.is_grad_enabled() and self._without is None and self._running:
            self._without = self._running[-1]
        self._running.append(name)

    def _leave(self, given: Any, out: Any) -> None:
        self.exits.append(_Exit(self._running.pop(), _under_autograd(given), _under_autograd((out,))))

    def where(self, name: str | None = None) -> str:
        """The place of a module in words; without a name that of the innermost one that is running."""
        if name is None:
            name = self._running[-1] if self._running else ""
        kind = type(self._modules[name]).__name__
        own = name.removeprefix("victim.").removeprefix("model.")  # ours: a victim, and a view of one
        return f"in '{own}' ({kind})" if own not in ("", "model", "victim") else f"in the forward of {kind}"

    def cut(self) -> LostGradient:
        """The first module that was given a tensor under autograd and returned none."""
        if self._without is not None:
            return LostGradient("cut", self.where(self._without), "which runs under no_grad")
        first = next((exit.name for exit in self.exits if exit.given and not exit.returned), None)
        return LostGradient("cut", "" if first is None else self.where(first))

    def vanishing(self, grads: Sequence[Tensor | None]) -> str:
        """The first module with a gradient of what it returned and none of what it was given."""
        ahead = iter(grads)
        for exit in self.exits:
            given, returned = ([next(ahead) for _ in tensors] for tensors in (exit.given, exit.returned))
            if given and _any(returned) and not _any(given):
                return self.where(exit.name)
        return ""


def _under_autograd(values: Any) -> tuple[Tensor, ...]:
    tensors = values[0] if len(values) == 1 and isinstance(values[0], tuple | list) else values
    return tuple(value for value in tensors if isinstance(value, Tensor) and value.requires_grad)


def _any(grads: Sequence[Tensor | None]) -> bool:
    return any(grad is not None and bool(grad.any()) for grad in grads)
