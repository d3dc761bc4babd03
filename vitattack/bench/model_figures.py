"""Size of zoo models, recorded in embedded/model_figures.json so that nobody has to build one to know it.

`python benchmarks/record_model_figures.py` counts and writes them; a test compares both.
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from vitattack.core.assets import EMBEDDED
from vitattack.core.errors import VitattackError
from vitattack.models.zoo.catalogue import zoo_entries
from vitattack.models.zoo.entry import ZooEntry

if TYPE_CHECKING:
    from vitattack.models.victim import Victim

FILE = EMBEDDED / "model_figures.json"


@dataclass(frozen=True)
class ModelFigures:
    """Parameters, and FLOPs for one image; a multiplication and an addition are two FLOPs."""

    parameters: int
    flops: int  # of a forward
    backward: int  # FLOPs of the gradient with respect to the image alone


def recorded_figures() -> dict[str, ModelFigures]:
    """Figures in the file, by zoo id."""
    try:
        content = json.loads(FILE.read_text())
    except (OSError, ValueError) as error:
        raise VitattackError(f"cannot read {FILE} ({error}): install vitattack again") from error
    return {id: ModelFigures(*numbers) for id, numbers in content["models"].items()}


_recorded = cache(recorded_figures)


def figures_of(entry: ZooEntry) -> ModelFigures | None:
    """Recorded figures of an entry, or those of an entry with the same architecture."""
    if entry.id in _recorded():
        return _recorded()[entry.id]
    shape = _shape(entry)
    return next((_recorded()[e.id] for e in zoo_entries().values() if e.id in _recorded() and _shape(e) == shape), None)


def _shape(entry: ZooEntry) -> tuple[Any, ...]:
    return entry.arch, entry.arch_kwargs, entry.input, entry.num_classes


def count_figures(entry: ZooEntry) -> ModelFigures:
    """Build the model of an entry without weights and count, which takes seconds for a large one."""
    from vitattack.models.zoo.figures import Unfilled, count_forward
    from vitattack.models.zoo.load import build_victim

    with Unfilled():
        victim = build_victim(entry).eval()
    forward = count_forward(victim)[0]
    return ModelFigures(sum(p.numel() for p in victim.parameters()), forward, _forward_and_backward(victim) - forward)


def _forward_and_backward(victim: Victim) -> int:
    """FLOPs of a forward and of the gradient of its sum; parameters are frozen, so that theirs are not computed."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from vitattack.models.victim import frozen

    with frozen(victim), FlopCounterMode(display=False) as counter:
        tensors = dict([*victim.named_parameters(), *victim.named_buffers()])
        on_meta = {name: tensor.detach().to("meta") for name, tensor in tensors.items()}
        x = victim.grey().to("meta").requires_grad_()
        torch.autograd.grad(torch.func.functional_call(victim, on_meta, (x.clone(),)).sum(), x)
    return int(counter.get_total_flops())


def write_figures(figures: dict[str, ModelFigures]) -> None:
    """Write the file, one model per line."""
    lines = [f"    {json.dumps(id)}: {json.dumps(astuple(figures[id]))}" for id in sorted(figures)]
    FILE.write_text('{\n  "schema": 1,\n  "models": {\n' + ",\n".join(lines) + "\n  }\n}\n")
