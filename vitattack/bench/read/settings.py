"""What a file may say of a model or of how cells are run: settings, and the options of a checkpoint file."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import Any

from vitattack.bench.read.rows import rows
from vitattack.bench.schema import Settings
from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.core.words import names_a_file, printable
from vitattack.models.normalise import normaliser
from vitattack.models.zoo.entries import Entry, entries
from vitattack.models.zoo.renamed import refuse_former_id
from vitattack.text.image_transform import parse_transform
from vitattack.text.yaml_lines import Item, checked

SETTINGS = tuple(f.name for f in fields(Settings))
OPTIONS = ("arch", "arch_kwargs", "num_classes", "normalize", "weights_key", "strip_prefix", "adapter", "like")


def some(item: Item, what: str, known: tuple[str, ...]) -> dict[str, Any]:
    return values(item.keys(what, known), known)


def values(said: dict[str, Item], known: tuple[str, ...]) -> dict[str, Any]:
    """The settings among the keys of a mapping."""
    found: dict[str, Any] = {}
    for key in (k for k in said if k in known):
        item = said[key]
        if key in ("batch_size", "limit", "threads"):
            found[key] = item.whole(key, 1, 1024 if key == "threads" else 10**9)
        elif key == "perceptual":
            found[key] = item.truth(key)
        elif key == "calibration":
            found[key] = item.text(key)
            checked(item, partial(rows, item.value))
        else:
            found[key] = item.text(key)
            checked(item, partial(parse_transform, item.value))
    return found


def check_file(text: str, options: dict[str, Any]) -> None:
    if not names_a_file(text):
        raise UsageError(f"weights file '{printable(text)}' does not exist: check the path, or name a model of the zoo")
    if "like" in options:
        if options["like"] not in entries():
            refuse_former_id(str(options["like"]), entries())
            raise UsageError(did_you_mean("model", str(options["like"]), entries()))
        if len(options) > 1:
            raise UsageError(f"like: {options['like']} says all there is to say about '{text}': drop the other options")
        return
    for key, example in (("arch", "vit_small_patch16_224"), ("normalize", "imagenet")):
        if not isinstance(options.get(key), str):
            raise UsageError(f"'{text}' does not say its {key}: add {key}: {example}")
    normaliser(options["normalize"])
    if not isinstance(options.get("arch_kwargs", {}), dict):
        raise UsageError("arch_kwargs are keys and values: write arch_kwargs: {num_classes: 10}")
    classes = options.get("num_classes", 1)
    if isinstance(classes, bool) or not isinstance(classes, int) or classes < 1:
        raise UsageError(f"num_classes is a whole number from 1 on, not {printable(repr(classes), 60)}: correct it")


def public(entry: Entry) -> bool:
    """Whether the model of an entry can be built and its weights fetched."""
    return entry.arch is not None and entry.weights is not None
