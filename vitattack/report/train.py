"""Tables of the shipped recipes, of a training plan, and of a finished run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vitattack.core.table import Table
from vitattack.train.courses import load_courses
from vitattack.train.recipe import Recipe
from vitattack.train.recipe_file import shipped_recipes

if TYPE_CHECKING:
    from vitattack.train.run_courses import TrainedCourse
    from vitattack.train.run_folder import TrainedRun
    from vitattack.train.training_plan import TrainingPlan


def recipes_table() -> tuple[Table, dict[str, Any]]:
    """Every recipe that ships with vitattack; of one with phases, the JSON holds the first."""
    rows, recipes = [], []
    for name in shipped_recipes():
        phases = load_courses(name)[0].phases
        rows.append((name, " + ".join(str(phase.epochs) for phase in phases), phases[0].summary))
        recipes.append({**phases[0].json(), "name": name})
    table = Table("recipes", ("recipe", "epochs", "what it does"), rows, left=3, line_each=True)
    return table, {"schema": 1, "recipes": recipes}


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


def plans_table(plans: Sequence[tuple[Recipe, TrainingPlan]]) -> tuple[Table, dict[str, Any]]:
    """The measured cost of every run that a recipe with phases or values stands for, and their sum."""
    rows = [(recipe.name, _count(plan.steps), f"{plan.seconds:.3f}", _hours(plan.hours)) for recipe, plan in plans]
    hours = [plan.hours for _, plan in plans]
    total = None if None in hours else sum(each for each in hours if each is not None)
    recipe, first = plans[0]
    notes = (
        f"{first.parameters:,} parameters, {first.flops:,} FLOPs of a forward of one image, batch {first.batch_size}; "
        "without probes",
        *dict.fromkeys(note for _, plan in plans for note in plan.assumed),
        *((f"the recipe says: {recipe.cost}",) if recipe.cost else ()),
    )
    rows.append(
        ("in all", _count(None if total is None else sum(plan.steps or 0 for _, plan in plans)), "", _hours(total))
    )
    table = Table("plan of all runs", ("run", "steps", "seconds per step", "hours"), rows, notes=notes, left=1)
    content = [{"recipe": each.json(), "plan": plan.json()} for each, plan in plans]
    return table, {"schema": 1, "runs": content, "hours": total}


def _count(steps: int | None) -> str:
    return "unknown" if steps is None else f"{steps:,}"


def _hours(hours: float | None) -> str:
    return "unknown" if hours is None else f"{hours:.2f}"


def courses_table(trained: Sequence[TrainedCourse]) -> tuple[Table, dict[str, Any]]:
    """The last epoch of the last phase of every course, side by side."""
    rows, content = [], []
    for each in trained:
        last = each.final.result["last"] or {}
        numbers = [f"{last[key]:.1%}" if key in last else "" for key in ("clean", "robust")]
        rows.append((each.course.label, *numbers, each.final.folder.name))
        phases = [run_table(run)[1] for run in each.runs]
        content.append(
            {"values": dict(each.course.values), "last": last, "weights": str(each.final.last), "phases": phases}
        )
    hours = sum({str(run.folder): run.result["hours"] for each in trained for run in each.runs}.values())
    notes = (
        f"stored in {trained[0].final.folder.parent}, each with its last.safetensors",
        *([f"phase 1 of all of them: {trained[0].runs[0].folder.name}"] if _shared(trained) else []),
        "held-out images after the last epoch; numbers for a paper come from vitattack eval",
    )
    table = Table(f"{len(trained)} runs | {hours:.2f} h", ("", "clean", "PGD-10", "folder"), rows, notes=notes, left=1)
    return table, {"schema": 1, "runs": content, "hours": round(hours, 4)}


def _shared(trained: Sequence[TrainedCourse]) -> bool:
    return all(len(each.runs) > 1 for each in trained) and len({each.runs[0].folder for each in trained}) == 1


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
