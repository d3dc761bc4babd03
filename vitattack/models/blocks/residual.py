"""Residual branches of blocks, found by following the stream through a forward; and models without some of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitattack.core.errors import UsageError, VitattackError
from vitattack.models.attention.attention_map import AttentionMap
from vitattack.models.attention.features import tapped_modules
from vitattack.models.attention.functions import EXPONENTIALS, SOFTMAXES, VIEWS, function_name
from vitattack.models.blocks.names import Part
from vitattack.models.victim import Victim, View, frozen

Kind = Literal["attention", "mlp", "convolution"]


ADDITIONS = {"add", "__add__", "__radd__", "__iadd__", "add_"}
IN_PLACE = {"__iadd__", "add_"}
# Blocks that normalise the stream itself go on with the normalised one.
NORMS = {"layer_norm", "rms_norm", "group_norm", "batch_norm"}
KEPT = VIEWS | NORMS | {"dropout", "feature_dropout"}
JOINED = {"cat", "concat", "concatenate"}


class Removal(NamedTuple):
    """One branch: the name of its block, and its number among those of the block."""

    block: str
    branch: int


@dataclass(frozen=True)
class Block:
    """A block by its number and name, with the kinds of its residual branches in the order they are added."""

    number: int
    name: str
    branches: tuple[Kind, ...]

    def removals(self, part: Part) -> frozenset[Removal]:
        """The branches that make up a part; a branch of attention and MLP in parallel counts as attention."""
        return frozenset(Removal(self.name, at) for at, kind in enumerate(self.branches) if part in ("block", kind))


@dataclass
class _Frame:
    """A block while it runs: tensors that are its stream, and functions since the last branch was added."""

    block: str
    stream: dict[int, Tensor]
    branches: list[Kind] = field(default_factory=list)
    called: set[str] = field(default_factory=set)

    def kind(self, attention: Collection[str]) -> Kind:
        if self.called & set(attention):
            return "attention"
        mixes = bool(self.called & {"conv2d", "conv1d"}) and not self.called & {"linear", "addmm", "matmul"}
        return "convolution" if mixes else "mlp"

    def follow(self, name: str, args: Any, out: Any) -> None:
        if name in KEPT or name in JOINED:
            given = args[0] if args else None
            parts = given if name in JOINED and isinstance(given, (list, tuple)) else [given]
            if parts and all(id(part) in self.stream for part in parts):
                self.keep(out)

    def keep(self, value: Any) -> None:
        for each in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(each, Tensor):
                self.stream[id(each)] = each  # held, so that its id is not given to another


class Residuals(TorchFunctionMode):
    """Sees the additions to the stream of some blocks, and leaves out those that are to be removed.

    Subclasses learn of every branch, and of the stream where it is normalised, and may put hooks there.
    """

    def __init__(self, removed: Collection[Removal] = (), attention: Collection[str] = SOFTMAXES) -> None:
        super().__init__()
        self.removed, self.attention = frozenset(removed), attention
        self.frames: list[_Frame] = []
        self.found: dict[str, tuple[Kind, ...]] = {}
        self.done: set[Removal] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = function_name(func)
        if not self.frames or name == "__get__":
            return func(*args, **kwargs)
        frame = self.frames[-1]
        if name in ADDITIONS:
            operands = [*args[:2], *(kwargs[key] for key in ("input", "other") if key in kwargs)]
            pair = _stream_and_branch(frame, operands)
            if pair is not None:
                return self._added(frame, func, name, args, kwargs, *pair)
        given = args
        if name in NORMS and args and id(args[0]) in frame.stream:
            given = (self.normalised(Removal(frame.block, len(frame.branches)), args[0]), *args[1:])
        out = func(*given, **kwargs)
        frame.called.add("linear" if _is_pointwise(name, args, kwargs) else name)
        frame.follow(name, args, out)
        return out

    def _added(
        self, frame: _Frame, func: Any, name: str, args: Any, kwargs: Any, stream: Tensor, branch: Tensor
    ) -> Tensor:
        removal, kind = Removal(frame.block, len(frame.branches)), frame.kind(self.attention)
        self.branch(removal, kind, branch)
        if removal in self.removed:
            self.done.add(removal)
            out = args[0].copy_(stream) if name in IN_PLACE and args[0] is branch else stream.clone()
        else:
            out = func(*args, **kwargs)
        frame.branches.append(kind)
        frame.called.clear()
        frame.stream.clear()
        frame.keep(out)
        return out

    def branch(self, place: Removal, kind: Kind, branch: Tensor) -> None:
        """Learn of a branch before it is added."""

    def normalised(self, place: Removal, stream: Tensor) -> Tensor:
        """Learn of a stream at the entrance of a branch that normalises it; what is returned takes its place there."""
        return stream

    def block_output(self, block: str, out: Any) -> None:
        """Learn of what a block returns."""

    def enter(self, block: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            frame = _Frame(block, {})
            for value in [*args, *kwargs.values()]:
                if isinstance(value, Tensor) and value.is_floating_point() and value.dim() >= 3:
                    frame.keep(value)
            self.frames.append(frame)

        return hook

    def leave(self, module: nn.Module, args: Any, out: Any) -> None:
        frame = self.frames.pop()
        self.block_output(frame.block, out)
        self.found[frame.block] = tuple(frame.branches)


def _is_pointwise(name: str, args: Any, kwargs: Any) -> bool:
    """Whether a convolution sees one position at a time, as a linear map of channels does."""
    weight = kwargs.get("weight", args[1] if len(args) > 1 else None)
    return name in ("conv1d", "conv2d") and isinstance(weight, Tensor) and set(weight.shape[2:]) == {1}


def _stream_and_branch(frame: _Frame, operands: Sequence[Any]) -> tuple[Tensor, Tensor] | None:
    """The operand that is the stream and the one that is added to it; None if this addition is another."""
    tensors = [each for each in operands if isinstance(each, Tensor) and not isinstance(each, nn.Parameter)]
    if len(tensors) != 2 or tensors[0].shape != tensors[1].shape:
        return None
    of_stream = [id(each) in frame.stream for each in tensors]
    if of_stream == [True, False]:
        return tensors[0], tensors[1]
    return (tensors[1], tensors[0]) if of_stream == [False, True] else None


@contextmanager
def followed(victim: nn.Module, names: Sequence[str], mode: Residuals) -> Iterator[Residuals]:
    """Let a mode see the named blocks in the forwards inside."""
    modules = dict(victim.named_modules())
    handles = []
    for name in names:
        handles.append(modules[name].register_forward_pre_hook(mode.enter(name), with_kwargs=True))
        handles.append(modules[name].register_forward_hook(mode.leave))
    try:
        with mode:
            yield mode
    finally:
        for handle in handles:
            handle.remove()


def attention_functions(layers: AttentionMap) -> set[str]:
    """Functions that make a branch one of attention."""
    return SOFTMAXES | {"multi_head_attention_forward"} | (EXPONENTIALS if layers.by_hand else set())


def residual_blocks(
    victim: Victim, x: Tensor, layers: AttentionMap, names: Sequence[str] | None = None
) -> tuple[Block, ...]:
    """The blocks around the attention layers of a model in call order, with their residual branches, from one forward.

    Other modules than those blocks are looked at if they are named.

    A branch is whatever is added to the stream, which enters a block as its input. It is attention if a softmax runs in
    it, a convolution if convolutions run and no linear maps, and an MLP otherwise.
    """
    names = tapped_modules(layers, "block") if names is None else names
    modules = dict(victim.named_modules())
    names = [name for name in names if not isinstance(modules[name], torch.jit.ScriptModule)]
    with (
        frozen(victim),
        torch.no_grad(),
        followed(victim, names, Residuals(attention=attention_functions(layers))) as mode,
    ):
        victim(x[:2])
    return tuple(Block(number, name, mode.found.get(name, ())) for number, name in enumerate(names))


def require_branches(blocks: Sequence[Block], name: str) -> None:
    """Refuse models without attention blocks, and those whose blocks add nothing to a stream."""
    if not blocks:
        raise UsageError(
            f"model '{name}' has no attention blocks, so there is nothing to remove: choose a vision transformer"
        )
    bare = [block.name for block in blocks if not block.branches]
    if bare:
        raise UsageError(
            f"block '{bare[0]}' of model '{name}' adds nothing to its input that I can see, so no branch of it can be "
            "removed: lesions are for residual blocks"
        )


class Lesioned(View):
    """A victim without some residual branches, whose stream goes on as if they had added nothing."""

    def __init__(self, victim: Victim, removed: Collection[Removal]) -> None:
        super().__init__(victim)
        self.removed = frozenset(removed)

    def forward(self, x: Tensor) -> Tensor:
        names = sorted({removal.block for removal in self.removed})
        with followed(self.victim, names, Residuals(self.removed)) as mode:
            logits: Tensor = self.victim(x)
        missing = self.removed - mode.done
        if missing:
            lost = min(missing)
            raise VitattackError(
                f"branch {lost.branch} of block '{lost.block}' of '{self.name}' did not run: probe it with images of this size"
            )
        return logits
