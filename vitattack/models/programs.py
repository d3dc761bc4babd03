"""Programs as models: TorchScript, exported graphs and pickled modules, which run code of their own when they are read."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitattack.core import progress
from vitattack.core.errors import UsageError, first_line
from vitattack.core.files import file_sha256
from vitattack.core.words import printable
from vitattack.models.digest import Stated
from vitattack.models.user_code import search_here
from vitattack.models.weights.file_kind import FileKind


class Program(Stated):
    """A graph without Python classes: identified by its file, and cut into batches of the size it was made for."""

    def __init__(self, graph: nn.Module, identity: str, batch: int | None) -> None:
        super().__init__()
        self.graph = graph
        self.identity = identity
        self.batch = batch  # None: any
        self.image_size: tuple[int, ...] | None = None  # height and width, where the graph states them

    def forward(self, x: Tensor) -> Any:
        if self.batch is None or len(x) == self.batch:
            return self.graph(x)
        pieces = []
        for piece in torch.split(x, self.batch):
            missing = self.batch - len(piece)
            filled = torch.cat([piece, piece[-1:].expand(missing, *piece.shape[1:])]) if missing else piece
            pieces.append(_tensor(self.graph(filled))[: len(piece)])
        return torch.cat(pieces)


def load_program(path: Path, kind: FileKind) -> nn.Module:
    """Run a program's file to get its module; the caller has made sure that the user trusts it."""
    name = printable(path.name)
    progress.current_listener().warn(f"--unsafe-pickle: '{name}' is {kind.words}, and reading it can run code")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch announces the end of TorchScript
            if kind.kind == "torchscript":
                graph = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
                return Program(graph, f"torchscript {file_sha256(path)}", None)
            if kind.kind == "exported":
                return _exported(path)
            with search_here():
                module = torch.load(path, map_location="cpu", weights_only=False)  # nosec B614
    except Exception as error:  # code of users, and parsers that fail in a dozen ways
        reason = printable(f"{type(error).__name__}: {first_line(error)}", 300)
        missing = isinstance(error, ModuleNotFoundError | AttributeError)
        fix = "run where its classes can be imported" if missing else "save it again with this version of torch"
        raise UsageError(f"'{name}' is {kind.words} that cannot be read ({reason}): {fix}") from error
    if not isinstance(module, nn.Module):
        raise UsageError(f"'{name}' holds a {type(module).__name__}, not a module: save model.state_dict()")
    return module


def _exported(path: Path) -> Program:
    program = torch.export.load(path)
    module = program.module()
    for name in ("train", "eval"):  # they raise, and the graph is that of eval mode
        vars(module).pop(name, None)
    wanted = set(program.graph_signature.user_inputs)
    shapes = [
        node.meta["val"].shape for node in program.graph.nodes if node.op == "placeholder" and node.name in wanted
    ]
    if len(shapes) != 1 or len(shapes[0]) != 4:
        raise UsageError(f"'{printable(path.name)}' does not take one batch of images: export a module that does")
    batch = shapes[0][0]
    made = Program(module, f"exported {file_sha256(path)}", batch if isinstance(batch, int) else None)
    if all(isinstance(side, int) for side in shapes[0][2:]):
        made.image_size = tuple(shapes[0][2:])
    return made


def _tensor(out: Any) -> Tensor:
    answer: Tensor = out if isinstance(out, Tensor) else out[0] if isinstance(out, tuple | list) else out.logits
    return answer
