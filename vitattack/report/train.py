"""The recipes there are, and what a training run came to, as tables."""

from __future__ import annotations

import json
from typing import Any

from vitattack.core.table import Table
from vitattack.train.plan import Plan
from vitattack.train.recipe import Recipe, load, shipped
from vitattack.train.train import Trained


def recipes() -> tuple[Table, dict[str, Any]]:
    """Every recipe that ships with vitattack."""
    found = {name: load(name) for name in shipped()}
    rows = [(name, str(recipe.epochs), recipe.summary) for name, recipe in found.items()]
    table = Table("recipes", ("recipe", "epochs", "what it does"), rows, left=3)
    return table, {"schema": 1, "recipes": [recipe.json() for recipe in found.values()]}


def priced(recipe: Recipe, found: Plan) -> tuple[Table, dict[str, Any]]:
    """What a run will take, beside what the recipe says of its cost."""
    rows = [
        ("parameters", f"{found.parameters:,}"),
        ("FLOPs of a forward, one image", f"{found.flops:,}"),
        ("steps", f"{found.steps:,} ({found.epochs} epochs of {found.steps_per_epoch}, batch {found.batch_size})"),
        ("seconds per step", f"{found.seconds:.3f} (median of {found.measured})"),
        ("hours", f"{found.hours:.2f}, without probes and scale searches"),
    ]
    notes = (f"the recipe says: {recipe.cost}",) if recipe.cost else ()
    return Table(f"plan of {recipe.name}", ("", ""), rows, notes=notes, left=2), {
        "schema": 1,
        "recipe": recipe.json(),
        "plan": found.json(),
    }


def summary(done: Trained) -> tuple[Table, dict[str, Any]]:
    """The best and the last epoch of a run, its files, and how the weights are used."""
    result = done.result
    rows = []
    for which in ("best", "last"):
        row = result[which]
        if row is not None:
            numbers = [f"{row[key]:.1%}" if key in row else "" for key in ("clean", "robust")]
            rows.append((which, f"{row['epoch']:.0f}", f"{row['loss']:.4f}", *numbers))
    recipe = result["recipe"]
    arch = [f"--arch {recipe['arch']}", f"--normalize {recipe['normalize']}", f"--num-classes {result['num_classes']}"]
    if recipe["arch_kwargs"]:
        arch.append(f"--arch-kwargs '{json.dumps(recipe['arch_kwargs'])}'")
    if result["adapter"]:
        arch.append(f"--adapter {result['adapter']}")
    table = Table(
        f"{recipe['name']} | {result['parameters']:,} parameters | {result['hours']:.2f} h",
        ("", "epoch", "loss", "clean", "PGD-10"),
        rows,
        notes=(
            f"stored in {done.folder}",
            f"chosen by {result['chosen_by']}; numbers for a paper come from vitattack eval:",
            f"vitattack eval {done.best} {' '.join(arch)}",
        ),
    )
    return table, {**result, "folder": str(done.folder), "epochs": list(done.epochs)}
