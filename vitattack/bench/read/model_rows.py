"""Rows of a benchmark file: models of the zoo or of a hub, checkpoint files, and models known by numbers alone."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from vitattack.bench.read.cell_settings import SETTINGS, settings_among
from vitattack.bench.read.unopened_data import UnopenedData
from vitattack.bench.schema import ModelRow
from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.core.words import names_a_file, printable
from vitattack.models.hugging_face.folder import names_a_folder
from vitattack.models.hugging_face.repository import PREFIXES as HF_PREFIXES
from vitattack.models.normalise import parse_normaliser
from vitattack.models.weights.sources import SUFFIXES
from vitattack.models.zoo.catalogue import zoo_entries
from vitattack.models.zoo.entry import ZooEntry
from vitattack.models.zoo.file_options import FileOptions
from vitattack.models.zoo.names import check_model_name, is_program, runs_code
from vitattack.models.zoo.other_texts import takes_texts, with_texts
from vitattack.models.zoo.renamed import refuse_former_id
from vitattack.text.yaml_lines import Item, checked, refuse_unknown

# Options of a checkpoint file, as fields of FileOptions.
OPTIONS = (
    *("arch", "arch_kwargs", "num_classes", "normalize", "weights_key", "strip_prefix", "adapter", "like"),
    *("model_from", "input_size"),
)
WILDCARDS = "*?["


def model_rows(item: Item, data: UnopenedData) -> list[ModelRow]:
    """Rows of one entry of `models`; a wildcard stands for all models of the zoo that were trained for the data."""
    is_mapping = isinstance(item.value, dict)
    keys = item.keys("a model", ("model", "label", "published", *OPTIONS, *SETTINGS)) if is_mapping else {}
    published = keys["published"].truth("published") if "published" in keys else False
    label = keys["label"].text("label") if "label" in keys else None
    if keys and "model" not in keys:
        if not (published and label):
            item.refuse("a model needs its name: add model: ID, or label: WORDS with published: true")
        return [ModelRow(label, label, item.line, published=True)]
    name = keys.get("model", item)
    text = name.text("a model")
    options = {key: keys[key].plain for key in OPTIONS if key in keys}
    settings = settings_among(keys)
    zoo = zoo_entries()
    if any(character in text for character in WILDCARDS) and text not in zoo:
        if label or options:
            item.refuse("a wildcard names several models: drop label and the options of a file")
        matching = [entry for id, entry in zoo.items() if fnmatchcase(id, text) and data.fits_training_of(entry)]
        if not matching:
            name.refuse(f"no model of the zoo for this data fits '{text}': vitattack models list shows them")
        return [ModelRow(e.id, e.id, name.line, published or not is_public(e), {}, settings) for e in matching]
    _check(name, text, options, data, published=published)
    # a model that cannot be fetched or built here is shown by its published numbers
    published = published or (text in zoo and not is_public(zoo[text]))
    return [ModelRow(text, label or text, name.line, published, options, settings)]


def _check(item: Item, text: str, options: Mapping[str, Any], data: UnopenedData, *, published: bool) -> None:
    """Refuse an unknown model, options that do not belong to it, and a head for other classes than those of the data."""
    zoo = zoo_entries()
    checked(item, lambda: refuse_former_id(text, zoo))
    if text.startswith(HF_PREFIXES) or names_a_folder(text) or runs_code(text, options):
        checked(item, lambda: check_model_name(text, FileOptions(**options, unsafe_pickle=is_program(text))))
    elif text in zoo or text.startswith("timm:"):
        if options and not (text in zoo and takes_texts(zoo[text]) and set(options) == {"arch_kwargs"}):
            item.refuse(f"{next(iter(options))} describes a checkpoint file, '{text}' is none: drop it")
    elif text.endswith(SUFFIXES):
        checked(item, lambda: _check_checkpoint(text, options))
    else:
        checked(
            item,
            lambda: refuse_unknown(
                "model", text, [*zoo, "timm:ARCH.TAG", "hf:OWNER/NAME", "FILE.py:NAME", "FILE.safetensors"]
            ),
        )
    entry = zoo.get(text) or zoo.get(str(options.get("like")))
    if entry is not None and text in zoo:
        entry = checked(item, lambda: with_texts(zoo[text], options.get("arch_kwargs")))
    if entry is not None and not published and not data.suits(entry):
        item.refuse(
            f"'{text}' has {entry.num_classes} classes, the data has {data.classes}: "
            "choose a model that was trained for it"
        )


def _check_checkpoint(text: str, options: Mapping[str, Any]) -> None:
    """Refuse a missing file, and options that do not describe its model fully."""
    if not names_a_file(text):
        raise UsageError(f"weights file '{printable(text)}' does not exist: check the path, or name a model of the zoo")
    if "like" in options:
        if options["like"] not in zoo_entries():
            refuse_former_id(str(options["like"]), zoo_entries())
            raise UsageError(did_you_mean("model", str(options["like"]), zoo_entries()))
        if len(options) > 1:
            raise UsageError(f"like: {options['like']} describes '{text}' completely: drop the other options")
        return
    for key, example in (("arch", "vit_small_patch16_224"), ("normalize", "imagenet")):
        if not isinstance(options.get(key), str):
            raise UsageError(f"'{text}' does not say its {key}: add {key}: {example}")
    parse_normaliser(options["normalize"])
    if not isinstance(options.get("arch_kwargs", {}), dict):
        raise UsageError("arch_kwargs are keys and values: write arch_kwargs: {num_classes: 10}")
    classes = options.get("num_classes", 1)
    if isinstance(classes, bool) or not isinstance(classes, int) or classes < 1:
        raise UsageError(f"num_classes is a whole number from 1 on, not {printable(repr(classes), 60)}: correct it")


def is_public(entry: ZooEntry) -> bool:
    """Whether the model can be built here and its weights can be fetched."""
    return entry.arch is not None and entry.weights is not None
