"""CLIP models of the zoo with other class names, prompts or image size than their entry states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vitattack.core.errors import UsageError
from vitattack.core.words import printable
from vitattack.models.clip.texts import OPEN_CLIP, count_classes
from vitattack.models.zoo.entry import ZooEntry

CHANGEABLE = ("class_names", "prompts", "native_size")


def takes_texts(entry: ZooEntry) -> bool:
    """Whether the classes of an entry are texts, which a user may choose."""
    return entry.arch is not None and entry.arch.startswith(OPEN_CLIP)


def with_texts(entry: ZooEntry, arguments: Any) -> ZooEntry:
    """The entry with the arguments that a user states; its published numbers are not those of other texts."""
    if not arguments:
        return entry
    if not takes_texts(entry):
        raise UsageError(f"'{entry.id}' states its architecture itself: drop --arch-kwargs")
    if not isinstance(arguments, Mapping):
        raise UsageError(
            "arch_kwargs are keys and values: write arch_kwargs: {class_names: wds-cars, prompts: wds-cars}"
        )
    odd = next((key for key in arguments if key not in CHANGEABLE), None)
    if odd is not None:
        raise UsageError(
            f"--arch-kwargs of '{entry.id}' may set {', '.join(CHANGEABLE)}, not {printable(odd, 40)}: drop it"
        )
    kwargs = {**entry.arch_kwargs, **arguments}
    size = kwargs.get("native_size")
    return replace(
        entry,
        arch_kwargs=kwargs,
        num_classes=count_classes(kwargs.get("class_names")),
        input=size if isinstance(size, int) else entry.input,
        transform="none" if size else entry.transform,
        reported=(),
    )
