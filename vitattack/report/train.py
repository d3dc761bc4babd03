"""Tables of the shipped recipes, of a training plan, and of a finished run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from vitattack.core.table import Table
from vitattack.train.recipe import Recipe
from vitattack.train.recipe_file import load_recipe, shipped_recipes

if TYPE_CHECKING:
    from vitattack.train.run_folder import TrainedRun
    from vitattack.train.training_plan import TrainingPlan


def recipes_table() -> tuple[Table, dict[str, Any]]:
    """Every recipe that ships with vitattack."""
    recipes = [load_recipe(name) for name in shipped_recipes()]
    rows = [(recipe.name, str(recipe.epochs), recipe.summary) for recipe in recipes]
    table = Table("recipes", ("recipe", "epochs", "what it does"), rows, left=3)
    return table, {"schema": 1, "recipes": [recipe.json() for recipe in recipes]}


def plan_table(recipe: Recipe, plan: TrainingPlan) -> tuple[Table, dict[str, Any]]:
    """The measured cost of a run beside the cost that its recipe states."""
    steps = f"{plan.epochs} epochs, batch {plan.batch_size}"
    if plan.steps is not None:
        steps = f"{plan.steps:,} ({plan.epochs} epochs of {plan.steps_per_epoch}, batch {plan.batch_size})"
    rows = [
        ("parameters", f"{plan.parameters:,}"),
        ("FLOPs of a forward, one image", f"{plan.flops:,}"),
        ("steps", steps),
        ("seconds per step", f"{plan.seconds:.3f} (median of {plan.measured})"),
        ("hours", "unknown" if plan.hours is None else f"{plan.hours:.2f}, without probes and scale searches"),
    ]
    notes = (*plan.assumed, *((f"the recipe says: {recipe.cost}",) if recipe.cost else ()))
    table = Table(f"plan of {recipe.name}", ("", ""), rows, notes=notes, left=2)
    return table, {"schema": 1, "recipe": recipe.json(), "plan": plan.json()}


def run_table(trained: TrainedRun) -> tuple[Table, dict[str, Any]]:
    """The best and the last epoch of a run, its files, and the command that evaluates its weights."""
    result = trained.result
    rows = []
    for name in ("best", "last"):
        row = result[name]
        if row is not None:
            numbers = [f"{row[key]:.1%}" if key in row else "" for key in ("clean", "robust")]
            rows.append((name, f"{row['epoch']:.0f}", f"{row['loss']:.4f}", *numbers))
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
            f"stored in {trained.folder}",
            f"chosen by {result['chosen_by']}; numbers for a paper come from vitattack eval:",
            f"vitattack eval {trained.best} {' '.join(arch)}",
        ),
    )
    return table, {**result, "folder": str(trained.folder), "epochs": list(trained.epochs)}
