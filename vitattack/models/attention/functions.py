"""Names of torch functions, however they were called, and those that hide a softmax inside themselves."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch.nn.functional as F

# Other names for one function; those of exported programs lose their overload ("softmax.int") first.
ALIASES = {"special_softmax": "softmax", "_softmax": "softmax", "_safe_softmax": "softmax", "special_exp2": "exp2"}
SOFTMAXES = {"softmax", "scaled_dot_product_attention", "flex_attention"}
EXPONENTIALS = {"exp", "exp_", "exp2", "exp2_"}
CASTS = {"to", "type", "type_as", "float", "half", "bfloat16", "double", "_to_copy"}
VIEWS = {
    "view", "reshape", "permute", "transpose", "swapaxes", "movedim", "unsqueeze", "squeeze", "flatten", "unflatten",
    "contiguous", "expand", "expand_as", "__getitem__", "select", "slice", "narrow", "chunk", "split", "unsafe_split",
    "unbind", "roll", "clone", "repeat", "repeat_interleave", "view_as", "reshape_as", "detach", "t", "moveaxis",
    "swapdims", "adjoint", "broadcast_to", "tile", "squeeze_", "unsqueeze_", "alias", "lift_fresh_copy",
}  # fmt: skip
MULTIPLICATIONS = {"mul", "__mul__", "__rmul__", "mul_", "__imul__", "multiply"}
DIVISIONS = {"div", "__truediv__", "div_", "__itruediv__", "true_divide", "divide"}


def function_name(func: Any) -> str:
    """Return the name of a torch function."""
    name: str = getattr(func, "__name__", "")
    if "." in name:
        name = name.partition(".")[0]
    return ALIASES.get(name, name)


def _open(func: Any) -> FunctionType:
    """Copy a Python function that dispatches as a whole, such that a mode sees the functions it calls one by one."""
    blind = {f"has_torch_function{end}": lambda *_: False for end in ("", "_unary", "_variadic")}
    copy = FunctionType(func.__code__, {**F.__dict__, **blind}, func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy


OPENED = {func.__name__: _open(func) for func in (F.multi_head_attention_forward, F.softmin, F.gumbel_softmax)}
