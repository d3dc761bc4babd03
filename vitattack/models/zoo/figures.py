"""Size and attention layers of zoo models, recorded in embedded/model_figures.json: known without torch or weights.

`python benchmarks/record_model_figures.py` counts and writes them; a test compares both.
"""

from __future__ import annotations

import json
from dataclasses import asdict, astuple, dataclass
from functools import cache
from typing import Any

from vitattack.core.assets import EMBEDDED
from vitattack.core.errors import VitattackError
from vitattack.models.zoo.catalogue import zoo_entries
from vitattack.models.zoo.entry import ZooEntry

FIGURES_FILE = EMBEDDED / "model_figures.json"


@dataclass(frozen=True)
class LayerFigures:
    """One attention layer: the module that runs it, its heads, and the kernel it uses."""

    name: str
    heads: int
    fused: bool
    kind: str  # as in AttentionLayer


@dataclass(frozen=True)
class ModelFigures:
    """Parameters, FLOPs for one image and attention layers; a multiplication and an addition are two FLOPs."""

    parameters: int
    flops: int  # of a forward
    backward: int  # FLOPs of the gradient with respect to the image alone
    attention: tuple[LayerFigures, ...]

    def json(self) -> dict[str, Any]:
        layers = [asdict(layer) for layer in self.attention]
        return {"parameters": self.parameters, "flops": self.flops, "attention": layers}


def recorded_figures() -> dict[str, ModelFigures]:
    """Return the figures in the file by zoo id."""
    try:
        content = json.loads(FIGURES_FILE.read_text())
    except (OSError, ValueError) as error:
        raise VitattackError(f"cannot read {FIGURES_FILE} ({error}): install vitattack again") from error
    layouts = [tuple(LayerFigures(*layer) for layer in layout) for layout in content["attention"]]
    return {
        id_: ModelFigures(parameters, flops, backward, layouts[layout])
        for id_, (parameters, flops, backward, layout) in content["models"].items()
    }


_recorded = cache(recorded_figures)


def figures_of(entry: ZooEntry) -> ModelFigures | None:
    """Return the recorded figures of an entry, or those of an entry with the same architecture."""
    if entry.id in _recorded():
        return _recorded()[entry.id]
    shape = _shape(entry)
    return next((_recorded()[e.id] for e in zoo_entries().values() if e.id in _recorded() and _shape(e) == shape), None)


def _shape(entry: ZooEntry) -> tuple[Any, ...]:
    return entry.arch, entry.arch_kwargs, entry.input, entry.num_classes


def write_figures(figures: dict[str, ModelFigures]) -> None:
    """Write the file: every distinct layout of attention layers once, then one model per line."""
    layouts = sorted({figures[id_].attention for id_ in figures}, key=lambda layers: [astuple(one) for one in layers])
    layers = [f"    {json.dumps([astuple(layer) for layer in layout])}" for layout in layouts]
    models = [
        f"    {json.dumps(id_)}: {json.dumps([one.parameters, one.flops, one.backward, layouts.index(one.attention)])}"
        for id_, one in sorted(figures.items())
    ]
    parts = ['  "schema": 1', '  "attention": [\n' + ",\n".join(layers) + "\n  ]"]
    FIGURES_FILE.write_text("{\n" + ",\n".join([*parts, '  "models": {\n' + ",\n".join(models) + "\n  }"]) + "\n}\n")
