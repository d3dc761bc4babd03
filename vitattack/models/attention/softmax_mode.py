"""A function mode that numbers the softmaxes of a forward, and the additions before each of them."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from vitattack.models.attention.attention_map import Place
from vitattack.models.attention.contractions import PRODUCTS
from vitattack.models.attention.functions import EXPONENTIALS, OPENED, SOFTMAXES, function_name
from vitattack.models.attention.scores import ADDITIONS, MAPS


class SoftmaxMode(TorchFunctionMode):
    """A mode that opens functions which hide a softmax and numbers what it sees; subclasses handle it.

    Exponentials are numbered with the softmaxes only where some of them belong to a softmax written by hand.
    """

    def __init__(self, *, exponentials: bool = False) -> None:
        super().__init__()
        self.softmaxes = 0
        self.inside = 0  # how often the mode has re-entered itself to open a function
        self._additions = 0
        self._eager = ExitStack()
        self._exponentials = exponentials

    def __enter__(self) -> Self:
        if not self.inside:
            self._eager.enter_context(_uncompiled())
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        super().__exit__(kind, error, at)  # type: ignore[no-untyped-call]
        if not self.inside:
            self._eager.close()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = function_name(func)
        if name == "__get__":
            return func(*args, **kwargs)
        if name in OPENED:
            self.inside += 1
            try:
                with self:
                    return OPENED[name](*args, **kwargs)
            finally:
                self.inside -= 1
        if name in SOFTMAXES:
            call, self.softmaxes, self._additions = self.softmaxes, self.softmaxes + 1, 0
            return self.softmax(call, func, name, args, kwargs)
        if self._exponentials and name in EXPONENTIALS and args and isinstance(args[0], Tensor):
            call, self.softmaxes = self.softmaxes, self.softmaxes + 1
            return self.softmax(call, func, name, args, kwargs)
        out = func(*args, **kwargs)
        # An addition is identified by the softmax it precedes and its position after the last projection or product.
        if name in PRODUCTS or name in MAPS:
            self._additions = 0
        place = None
        if name in ADDITIONS:
            place, self._additions = (self.softmaxes, self._additions), self._additions + 1
        self.other(func, name, args, kwargs, out, place)
        return out

    def softmax(self, call: int, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Run the softmax or exponential with this number, or what replaces it."""
        return func(*args, **kwargs)

    def other(self, func: Any, name: str, args: Any, kwargs: Any, out: Any, place: Place | None) -> None:
        """Take note of a function other than a softmax that has just been computed."""


def _uncompiled() -> AbstractContextManager[Any]:
    """Run what a model has compiled as it was written: a compiler would inline the mode, and flex_attention is compiled."""
    compiles = "torch._dynamo" in sys.modules or "torch.nn.attention.flex_attention" in sys.modules
    known = hasattr(torch.compiler, "set_stance")  # from torch 2.6 on
    return torch.compiler.set_stance("force_eager") if compiles and known else nullcontext()


def softmax_axis(args: Any, kwargs: Any, dims: int) -> int:
    """Return the axis of a softmax, counted from the front; without one it is torch's choice."""
    axis = args[1] if len(args) > 1 else kwargs.get("dim", -1)
    if axis is None:
        return 0 if dims in (0, 1, 3) else 1
    return int(axis) % dims


def softmax_input(args: Any, kwargs: Any) -> Tensor:
    """Return the scores that a softmax or exponential is given."""
    scores: Tensor = args[0] if args else kwargs["input"] if "input" in kwargs else kwargs["self"]
    return scores
