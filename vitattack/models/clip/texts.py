"""Texts of a zero-shot head: names of classes and prompts, by name or as lists."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from vitattack.core.assets import EMBEDDED
from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.core.words import printable
from vitattack.text.class_lists import CIFAR10, CIFAR100

OPEN_CLIP = "open_clip:"  # in front of the name of an architecture
MOST_CLASSES, MOST_PROMPTS, LONGEST = 100_000, 1000, 400
ZERO_SHOT_SETS = tuple(
    f"wds-{name}"
    for name in (
        *("caltech101", "cars", "cifar10", "cifar100", "dtd", "eurosat", "fgvc-aircraft", "flowers", "imagenet-r"),
        *("imagenet-sketch", "pcam", "pets", "stl10"),
    )
)
CLASS_LISTS = ("cifar10", "cifar100", "imagenet", *ZERO_SHOT_SETS)
PROMPT_LISTS = ("photo", "robustvlm", "openai-7", "openai-80", *ZERO_SHOT_SETS)


@dataclass(frozen=True)
class Texts:
    """The names of the classes, and prompts with {} in the place of a name."""

    classes: tuple[str, ...]
    prompts: tuple[str, ...]

    def of(self, name: str) -> list[str]:
        return [prompt.replace("{}", name) for prompt in self.prompts]

    def record(self) -> dict[str, Any]:
        """What a result says of them."""
        parts = {"classes": self.classes, "prompts": self.prompts}
        return {
            **{key: len(texts) for key, texts in parts.items()},
            **{f"{key}_sha256": hashlib.sha256(json.dumps(texts).encode()).hexdigest() for key, texts in parts.items()},
        }


def read_texts(class_names: Any, prompts: Any) -> Texts:
    """The texts that the arguments of an architecture name or list."""
    classes, templates = _classes(class_names), _prompts(prompts)
    for what, texts, most in (("class_names", classes, MOST_CLASSES), ("prompts", templates, MOST_PROMPTS)):
        if (
            not texts
            or len(texts) > most
            or not all(isinstance(text, str) and 0 < len(text) <= LONGEST for text in texts)
        ):
            raise UsageError(f"{what} must be 1 to {most:,} texts of up to {LONGEST} characters")
    without = next((prompt for prompt in templates if "{}" not in prompt), None)
    if without is not None:
        raise UsageError(f"the prompt '{printable(without, 60)}' has no place for the class: write {{}} there")
    return Texts(classes, templates)


def count_classes(class_names: Any) -> int:
    """How many classes there are, for lists that open_clip holds without importing it."""
    of_imagenet = class_names in ("imagenet", "wds-imagenet-sketch") if isinstance(class_names, str) else False
    return 1000 if of_imagenet else len(_classes(class_names))


def _classes(named: Any) -> tuple[str, ...]:
    if isinstance(named, list | tuple):
        return tuple(named)
    if named in ("cifar10", "wds-cifar10"):
        return CIFAR10
    if named == "cifar100":
        return tuple(name.replace("_", " ") for name in CIFAR100)
    if named == "wds-cifar100":
        return CIFAR100
    if named in ("imagenet", "wds-imagenet-sketch"):
        return tuple(_metadata().IMAGENET_CLASSNAMES)
    if named in ZERO_SHOT_SETS:
        return tuple(_zero_shot_texts()[named]["classes"])
    if named is None:
        raise UsageError(
            'a CLIP model classifies by texts: add --arch-kwargs \'{"class_names": "cifar10"}\', or a list of names'
        )
    raise UsageError(did_you_mean("list of class names", str(named), CLASS_LISTS))


def _prompts(named: Any) -> tuple[str, ...]:
    if isinstance(named, list | tuple):
        return tuple(named)
    single = {None: "a photo of a {}.", "photo": "a photo of a {}.", "robustvlm": "This is a photo of a {}"}
    if named in single:
        return (single[named],)
    if named in ("wds-imagenet-r", "wds-imagenet-sketch"):
        named = "openai-80"
    if named in ZERO_SHOT_SETS:
        return tuple(_zero_shot_texts()[named]["prompts"])
    if named in ("openai-7", "openai-80"):
        listed: Sequence[Any] = getattr(
            _metadata(), f"{'SIMPLE' if named == 'openai-7' else 'OPENAI'}_IMAGENET_TEMPLATES"
        )
        return tuple(template("{}") for template in listed)
    raise UsageError(did_you_mean("list of prompts", str(named), PROMPT_LISTS))


@cache
def _zero_shot_texts() -> dict[str, dict[str, list[str]]]:
    """Class names and prompts of CLIP_benchmark by the name of the data set, where open_clip has none of them."""
    texts: dict[str, dict[str, list[str]]] = json.loads((EMBEDDED / "zero_shot_texts.json").read_text())
    return texts


def _metadata() -> Any:
    return import_module("open_clip.zero_shot_metadata")
