"""Courses: the runs that a recipe stands for, one after another, for every choice of its values.

`then` holds the keys of a second phase, which begins with the last weights of the first. `values` are texts that others
name in braces, as in `objective: trade_off(share={lambda})`; a value with several choices stands for a course each.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vitattack.core.errors import UsageError
from vitattack.core.words import printable
from vitattack.train.recipe import Recipe
from vitattack.train.recipe_file import recipe_from_json, recipe_keys, split_at_outer_commas
from vitattack.train.recipe_part_names import check_part_names

MOST, LONGEST = 1000, 1000  # courses of one command; characters of a value


@dataclass(frozen=True)
class Course:
    """Phases of training, each from the last weights of the one before; `values` are those that tell it from others."""

    values: Mapping[str, str]
    phases: tuple[Recipe, ...]

    @property
    def label(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.values.items())


def load_courses(text: str, changes: Sequence[str] = ()) -> list[Course]:
    """The courses of a recipe by name or YAML file; `name=a,b` tries several choices of a value."""
    content = recipe_keys(text, changes)
    then = content.pop("then", None)
    choices = _choices(content)
    if not isinstance(then, dict | None):
        raise UsageError(
            f"recipe '{printable(str(content.get('name')))}': then holds keys and values of a second phase"
        )
    if then is not None and {"init", "init_adapter"} & then.keys():
        raise UsageError("then: a second phase begins with the weights of the first: drop its init")
    courses = []
    for chosen in itertools.product(*choices.values()):
        values = dict(zip(choices, chosen, strict=True))
        differing = {name: value for name, value in values.items() if len(choices[name]) > 1}
        courses.append(Course(differing, _phases(content, then, values)))
    return courses


def load_recipe(text: str, changes: Sequence[str] = ()) -> Recipe:
    """The recipe of a name or YAML file; of one with several runs, the first."""
    return load_courses(text, changes)[0].phases[0]


def after(recipe: Recipe, weights: str) -> Recipe:
    """The recipe of a later phase, from the weights of the one before."""
    return replace(recipe, init=weights, init_adapter=())


def _choices(content: dict[str, Any]) -> dict[str, list[str]]:
    """The choices of every value, taken out of the keys."""
    values = content.pop("values", None) or {}
    if not isinstance(values, dict):
        raise UsageError("values: write names and texts, such as {lambda: 0.5}")
    choices = {}
    for name, value in values.items():
        given = value if isinstance(value, list) else split_at_outer_commas(str(value))
        choices[str(name)] = [str(each) for each in given]
        if not given or len(set(choices[str(name)])) < len(given):
            raise UsageError(f"{printable(str(name))}= takes one value or several different ones, such as 0.1,0.5")
        if max(map(len, choices[str(name)])) > LONGEST:
            raise UsageError(
                f"{printable(str(name))}= is a text of more than {LONGEST} characters: write a shorter one"
            )
    if math.prod(map(len, choices.values())) > MOST:
        raise UsageError(f"values: these choices are more than {MOST} courses: give fewer")
    return choices


def _phases(content: dict[str, Any], then: dict[str, Any] | None, values: Mapping[str, str]) -> tuple[Recipe, ...]:
    found = []
    for number, keys in enumerate([content] if then is None else [content, {**content, **then, "init": None}]):
        filled = _filled(keys, values)
        recipe = recipe_from_json(filled)
        numbers = [
            f"-{name}-{value}" for name, value in values.items() if is_number(value) and f"{{{name}}}" in str(keys)
        ]
        phase = "-phase1" if then is not None and number == 0 else ""
        recipe = replace(recipe, name="".join([recipe.name, *numbers, phase]))
        check_part_names(recipe)
        found.append(recipe)
    return tuple(found)


def is_number(text: str) -> bool:
    """Whether the text of a value is a plain number."""
    return re.fullmatch(r"\d+(\.\d+)?", text) is not None


def _filled(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for name, text in values.items():
            value = value.replace(f"{{{name}}}", text)
        return value
    if isinstance(value, list):
        return [_filled(each, values) for each in value]
    return {key: _filled(each, values) for key, each in value.items()} if isinstance(value, dict) else value
