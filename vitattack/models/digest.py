"""Digest of the function that a model is: its tensors, its settings, and the code of its classes.

Two models with equal weights may be different functions: a mean in a list, a cached tensor, a lambda, a corrected
`forward`. All of it is hashed by value. Code of libraries is known by name, since their versions are recorded beside
every number; any other code is hashed as bytecode, with the globals, defaults and closures it reads.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from pathlib import PurePath
from pickle import PicklingError
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.fx
from torch import Tensor, nn

# Their code is what their version says, and that is recorded with every result.
LIBRARIES = frozenset({"vitattack", "torch", "torchvision", "timm", "transformers", "numpy"}) | sys.stdlib_module_names
# Attributes that every nn.Module has: tensors and children are hashed by name, hooks by value, the rest is bookkeeping.
BOOKKEEPING = frozenset(vars(nn.Module())) | {"training"}
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
# Members of a class that say nothing of what it computes.
UNTOLD = {
    *("__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__annotate__"),
    *("__annotate_func__", "__annotations_cache__", "__firstlineno__", "__static_attributes__"),
    *("__orig_bases__", "__parameters__", "__abstractmethods__", "_abc_impl", "__dataclass_fields__"),
    *("__dataclass_params__", "__match_args__"),
}
DEEPEST = 120  # values inside each other, far from the limit of Python's stack
ATOMS = (type(None), type(...), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, PurePath)


class Stated(nn.Module):
    """A module whose function `identity` states, such as the hash of the program it was read from; nothing below is looked at."""

    identity: str


class Fingerprint(NamedTuple):
    """The digest of a model, and the places whose content has no digest: it may change without the digest changing."""

    digest: str
    unknown: tuple[str, ...]


def fingerprint(module: nn.Module) -> Fingerprint:
    """Hash the function that a module computes in eval mode."""
    hashing = _Hashing(module)
    return Fingerprint(hashing.module(module), tuple(dict.fromkeys(hashing.unknown)))


def value_digest(value: object) -> str:
    """Hash any value by its content."""
    return _Hashing(nn.Module()).value(value, type(value).__qualname__)


def buffers_digest(module: nn.Module) -> str:
    """Hash the buffers of a module alone."""
    return _sha256(*_named_tensors(module.named_buffers()))


def _named_tensors(named: Iterator[tuple[str, Tensor]]) -> Iterator[bytes]:
    for name, tensor in sorted(named, key=lambda item: item[0]):
        yield name.encode()
        yield tensor_bytes(tensor)


def tensor_bytes(tensor: Tensor) -> bytes:
    """A tensor as bytes: dtype, shape and values."""
    data = tensor.detach()
    if data.layout != torch.strided:
        data = data.to_dense()
    if data.is_quantized:
        data = data.dequantize()
    data = data.resolve_conj().resolve_neg().cpu().contiguous()
    head = f"{tensor.dtype}|{tuple(data.shape)}|".encode()
    return head + (data.view(-1).view(torch.uint8).numpy().tobytes() if data.numel() else b"")


def _sha256(*parts: bytes) -> str:
    """Hash of a sequence of byte strings, each with its length so that no two sequences are written alike."""
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(f"{len(part)}:".encode())
        hasher.update(part)
    return hasher.hexdigest()


class _Hashing:
    """Digests of values by content; `unknown` collects the places of values that have none."""

    def __init__(self, root: nn.Module) -> None:
        self.unknown: list[str] = []
        self._names = {id(part): name for name, part in root.named_modules()}
        self._known: dict[int, tuple[object, str]] = {}  # the object is kept, or its id might be given to another
        self._open: set[int] = set()

    def module(self, root: nn.Module) -> str:
        """Digest of a module and all it holds."""
        parts = list(_named_tensors(iter([*root.named_buffers(), *root.named_parameters()])))
        stated = [f"{name}." if name else "" for name, part in root.named_modules() if isinstance(part, Stated)]
        for name, part in root.named_modules():
            where = name or type(part).__name__
            if isinstance(part, Stated):
                parts.append(f"{name}|{part.identity}".encode())
            if any(f"{name}.".startswith(prefix) for prefix in stated):
                continue
            parts.append(f"{name}|{self.value(type(part), where)}".encode())
            for key, value in sorted(vars(part).items()):
                if key not in BOOKKEEPING:
                    parts.append(f"{key}|{self.value(value, f'{where}.{key}')}".encode())
            for key in HOOKS:
                hooks = [self.value(hook, f"{where}.{key}") for hook in vars(part).get(key, {}).values()]
                parts.append(" ".join(hooks).encode())
        return _sha256(*parts)

    def value(self, value: Any, where: str) -> str:
        """Digest of any value; `where` is its place in the model, as a message names it."""
        if isinstance(value, ATOMS):
            return _sha256(type(value).__qualname__.encode(), repr(value).encode())
        if isinstance(value, nn.Module) and id(value) in self._names:
            return _sha256(b"module of the model", self._names[id(value)].encode())
        if id(value) in self._open:
            return _sha256(
                b"itself", type(value).__qualname__.encode(), str(getattr(value, "__qualname__", "")).encode()
            )
        if len(self._open) >= DEEPEST:
            self.unknown.append(f"{where[:60]}...")
            return _sha256(b"deeper", type(value).__qualname__.encode())
        if id(value) not in self._known:
            self._open.add(id(value))
            try:
                self._known[id(value)] = (value, self._compound(value, where))
            finally:
                self._open.discard(id(value))
        return self._known[id(value)][1]

    def _compound(self, value: Any, where: str) -> str:
        kind = type(value).__qualname__.encode()
        if isinstance(value, Tensor):
            return _sha256(b"tensor", b"" if value.is_meta else tensor_bytes(value))
        if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
            return _sha256(kind, f"{value.dtype}|{value.shape}".encode(), np.ascontiguousarray(value).tobytes())
        if isinstance(value, list | tuple | deque):
            return _sha256(kind, *(self.value(item, f"{where}[{n}]").encode() for n, item in enumerate(value)))
        if isinstance(value, set | frozenset):
            return _sha256(kind, *sorted(self.value(item, where).encode() for item in value))
        if isinstance(value, Mapping):
            pairs = [
                (self.value(key, where) + self.value(item, f"{where}[{key!r:.40}]")).encode()
                for key, item in value.items()
            ]
            return _sha256(kind, *(pairs if isinstance(value, OrderedDict) else sorted(pairs)))
        if isinstance(value, nn.Module):
            return _sha256(b"hidden module", self.module(value).encode())
        if isinstance(value, type):
            return self._class(value, where)
        if isinstance(value, torch.fx.Graph):
            return _sha256(b"graph", *(self._node(node, where).encode() for node in value.nodes))
        if isinstance(value, types.ModuleType):
            return _sha256(b"python module", value.__name__.encode())
        return self._callable(value, where) or self._object(value, where)

    def _node(self, node: torch.fx.Node, where: str) -> str:
        """Digest of one operation of a graph, with the operations before it by their names."""
        inputs = torch.fx.map_arg((node.args, node.kwargs), lambda other: f"%{other.name}")
        return self.value((node.op, node.name, node.target, inputs), f"{where}.{node.name}")

    def _callable(self, value: Any, where: str) -> str | None:
        """Digest of a function, a method or something that wraps one; None for anything else."""
        if isinstance(value, types.FunctionType):
            return self._function(value, where)
        if isinstance(value, types.MethodType):
            return _sha256(
                b"method", self.value(value.__func__, where).encode(), self.value(value.__self__, where).encode()
            )
        if isinstance(value, partial):
            return self.value(("partial", value.func, value.args, value.keywords), where)
        if isinstance(value, staticmethod | classmethod):
            return self.value((type(value).__name__, value.__func__), where)
        if isinstance(value, property):
            return self.value(("property", value.fget, value.fset), where)
        if isinstance(value, torch.jit.ScriptFunction):
            return self.value(("script", value.qualified_name, value.code), where)
        if isinstance(value, types.BuiltinMethodType) and isinstance(value.__self__, types.ModuleType | types.NoneType):
            return _sha256(b"builtin", f"{value.__module__}.{value.__qualname__}".encode())
        if isinstance(value, cached_property):
            return self.value(("cached_property", value.func), where)
        name = getattr(value, "__qualname__", None)  # descriptors of foreign code may have none
        if inspect.isroutine(value) and not isinstance(value, types.BuiltinMethodType) and name is not None:
            return _sha256(b"builtin", f"{getattr(value, '__objclass__', '')}.{name}".encode())
        wrapped = inspect.unwrap(value) if hasattr(type(value), "cache_info") else value
        return None if wrapped is value else self.value(wrapped, where)  # functools.cache and its like

    def _function(self, function: types.FunctionType, where: str) -> str:
        where = f"{where}:{function.__name__}" if function.__name__ not in where else where
        code = function.__code__
        cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
        around = [self.value(one, where) for one in (function.__defaults__, function.__kwdefaults__, tuple(cells))]
        name = f"{function.__module__}.{function.__qualname__}"
        if _is_library(function.__module__):
            return _sha256(b"library", name.encode(), *map(str.encode, around))
        used = sorted(set(_names_in(code)))
        seen = [
            f"{key}|{self._used(function.__globals__[key], used, where, key)}"
            for key in used
            if key in function.__globals__
        ]
        return _sha256(b"function", *_code_bytes(code), *map(str.encode, [*around, *seen]))

    def _used(self, value: Any, used: list[str], where: str, name: str) -> str:
        """Digest of a global; of a module that is no library, of what the code names in it."""
        if not isinstance(value, types.ModuleType) or _is_library(value.__name__) or id(value) in self._open:
            return self.value(value, f"{where}:{name}")
        self._open.add(id(value))
        try:
            named = [f"{key}|{self._used(vars(value)[key], used, where, key)}" for key in used if key in vars(value)]
        finally:
            self._open.discard(id(value))
        return _sha256(value.__name__.encode(), *map(str.encode, named))

    def _class(self, cls: type, where: str) -> str:
        name = f"{cls.__module__}.{cls.__qualname__}".encode()
        if _is_library(cls.__module__):
            patched = [  # by somebody else's code, as repositories do with the attention of timm
                f"{key}|{self.value(value, f'{cls.__name__}.{key}')}"
                for base in cls.__mro__
                for key, value in sorted(vars(base).items())
                if isinstance(value, types.FunctionType) and not _is_library(value.__module__)
            ]
            return _sha256(b"library", name, *map(str.encode, patched))
        members = [
            f"{key}|{self.value(value, f'{cls.__name__}.{key}')}"
            for key, value in sorted(vars(cls).items())
            if key not in UNTOLD and not isinstance(value, types.GetSetDescriptorType | types.MemberDescriptorType)
        ]
        bases = [self.value(base, where) for base in cls.__bases__]
        return _sha256(b"class", cls.__qualname__.encode(), *map(str.encode, [*members, *bases]))

    def _object(self, value: Any, where: str) -> str:
        """Digest of an object by its class and its state, as pickle would take it apart."""
        if isinstance(value, torch.Generator):
            return _sha256(b"generator", f"{value.device}|{value.initial_seed()}".encode())
        try:
            taken = value.__reduce_ex__(2)
        except (TypeError, ValueError, AttributeError, RuntimeError, OSError, PicklingError):
            self.unknown.append(f"{where} ({type(value).__name__})")
            return _sha256(b"unknown", type(value).__qualname__.encode())
        if isinstance(taken, str):
            return _sha256(b"global", f"{type(value).__module__}.{taken}".encode())
        made, arguments, *rest = taken
        rest = [list(part) if isinstance(part, Iterator) else part for part in rest]
        return self.value((type(value), made, arguments, *rest), where)


def _is_library(module: str | None) -> bool:
    return (module or "").partition(".")[0] in LIBRARIES


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _names_in(code: types.CodeType) -> Iterator[str]:
    """Names of globals and attributes that a code object and the code inside it use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _code_bytes(code: types.CodeType) -> Iterator[bytes]:
    """What a code object does, without where it stands: line numbers and comments change nothing."""
    yield code.co_code
    yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_flags)).encode()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_bytes(constant)
        else:
            yield repr(sorted(constant, key=repr) if isinstance(constant, frozenset) else constant).encode()
