"""Run the courses of a recipe, phase after phase; what they have in common is trained once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitattack.train.courses import Course, after, is_number
from vitattack.train.recipe import Recipe
from vitattack.train.recipe_parts import canonical_recipe
from vitattack.train.run_folder import TrainedRun, folder_of
from vitattack.train.run_recipe import plan_training, train
from vitattack.train.training_plan import TrainingPlan


@dataclass(frozen=True)
class TrainedCourse:
    """A course with the finished run of every phase."""

    course: Course
    runs: tuple[TrainedRun, ...]

    @property
    def final(self) -> TrainedRun:
        return self.runs[-1]


def train_courses(courses: Sequence[Course], **options: Any) -> list[TrainedCourse]:
    """Train every phase of every course with the options of `train`; the same call resumes, with equal bits.

    A phase that several courses share is one run.
    """
    for course in courses:
        for phase in course.phases:
            canonical_recipe(phase)  # or a mistake in the last phase would be found after hours
    finished: dict[str, TrainedRun] = {}
    trained = []
    for course in courses:
        runs: list[TrainedRun] = []
        for phase in course.phases:
            recipe = after(phase, str(runs[-1].last)) if runs else phase
            if recipe.key not in finished:
                finished[recipe.key] = train(recipe, **options)
            runs.append(finished[recipe.key])
        trained.append(TrainedCourse(course, tuple(runs)))
    return trained


def final_folder(course: Course, out: str | Path) -> Path:
    """The folder of the last run of a course, once the runs before it are finished."""
    folder: Path | None = None
    for phase in course.phases:
        folder = folder_of(after(phase, str(folder / "last.safetensors")) if folder else phase, out)
    assert folder is not None
    return folder


def plan_courses(courses: Sequence[Course], **options: Any) -> list[tuple[Recipe, TrainingPlan]]:
    """The plan of every different phase of some courses, with the options of `plan_training`.

    Phases that differ in numbers alone, such as trade-offs, cost the same and are measured once.
    """
    plans: dict[str, tuple[Recipe, TrainingPlan]] = {}
    measured: dict[tuple[object, ...], TrainingPlan] = {}
    for course in courses:
        words = [value for value in course.values.values() if not is_number(value)]
        for number, phase in enumerate(course.phases):
            if phase.key not in plans:
                kind = (number, *words)
                measured[kind] = measured.get(kind) or plan_training(phase, **options)
                plans[phase.key] = (phase, measured[kind])
    return [*plans.values()]
