"""Entries of the user's own zoo file: checkpoints under names of their choice."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vitattack.core import files
from vitattack.core.errors import UsageError
from vitattack.core.locks import cache_lock
from vitattack.core.words import names_a_file, printable
from vitattack.models.normalise import parse_normaliser
from vitattack.models.weights import sources
from vitattack.models.zoo.catalogue import read_zoo_file, user_zoo_file, zoo_entries
from vitattack.models.zoo.entry import ZooEntry, parse_entry
from vitattack.models.zoo.file_options import FileOptions
from vitattack.text.image_transform import parse_transform
from vitattack.threats.base import parse_threat

START = (
    "# Models of your own, as in vitattack's model_zoo.yaml; `vitattack models add` appends here.\nschema: 1\nmodels:\n"
)


@dataclass(frozen=True)
class About:
    """Facts of an entry that are not needed to load the checkpoint."""

    dataset: str
    summary: str = "added by the user"
    trained_for: str | None = None
    transform: str = "none"
    clean: tuple[float, int] | None = None  # percent, and of how many images
    licence: str = "unknown"


def check_new_name(name: str) -> None:
    """Raise a UsageError if a new entry cannot have this name."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*(/[A-Za-z0-9][\w.+-]*)*", name) or name.endswith(sources.SUFFIXES):
        raise UsageError(f"'{printable(name)}' is no name for a model: use letters, digits and - _ . /")
    if name in zoo_entries():
        raise UsageError(f"'{name}' is in the zoo already: choose another name, or remove it from {user_zoo_file()}")


def add_entry(name: str, source: str, options: FileOptions, about: About) -> ZooEntry:
    """Add an entry to the user's zoo file, once its weights have been fetched and loaded strictly."""
    check_new_name(name)
    if options.arch is None or options.normalize is None:
        missing = "--arch, such as vit_small_patch16_224" if options.arch is None else "--normalize, such as imagenet"
        raise UsageError(f"the checkpoint does not state this itself: add {missing}")
    if about.trained_for is not None:
        parse_threat(about.trained_for)
    parse_transform(about.transform)
    item = _item(name, _source(source), options, about)
    entry = parse_entry(item, f"model '{name}'")
    from vitattack.models.zoo.load import load_entry

    load_entry(entry, unsafe_pickle=options.unsafe_pickle)
    files.cache_folder()
    with cache_lock("user zoo"):
        path = user_zoo_file()
        before = path.read_text() if path.is_file() else START
        written = yaml.safe_dump([item], sort_keys=False, allow_unicode=True, width=120)
        with files.replacing(path) as beside:
            beside.write_text(before.rstrip("\n") + "\n\n" + "".join(f"  {line}\n" for line in written.splitlines()))
            if not _holds(beside, name):
                raise UsageError(f"'{path}' is not laid out as it was written: append the model there by hand")
    return entry


def _holds(path: Path, name: str) -> bool:
    try:
        return name in read_zoo_file(path)
    except UsageError:
        return False


def parse_clean_accuracy(text: str) -> tuple[float, int]:
    """Parse 91.2/10000 as percent and number of images."""
    match = re.fullmatch(r"(\d{1,3}(?:\.\d+)?)/([1-9]\d{0,8})", text)
    if not match or float(match[1]) > 100:
        raise UsageError(f"clean accuracy '{printable(text)}' is not understood: write 91.2/10000")
    return float(match[1]), int(match[2])


def _source(text: str) -> sources.Source:
    """Parse a path or the text of a source."""
    scheme = text.partition(":")[0]
    if scheme in sources.FORMS or scheme == "http":
        source = sources.parse_source(text)
        if source.kind == "embedded":
            raise UsageError("embedded weights ship with vitattack: name a file or an address")
        if source.kind != "file":
            return source
        text = source.where
    path = sources.Source("file", text).path
    if not names_a_file(path):
        raise UsageError(f"weights file '{printable(text)}' does not exist: check the path")
    return sources.parse_source(f"file:{path.absolute()}")


def _item(name: str, source: sources.Source, options: FileOptions, about: About) -> dict[str, Any]:
    """Return the entry as the zoo file stores it; classes and input size are read off the architecture."""
    import torch  # not before everything else is checked

    from vitattack.models.architectures.build import build_architecture
    from vitattack.models.zoo.from_file import class_count, input_size_of

    assert options.arch is not None and options.normalize is not None
    kwargs = options.architecture_arguments()
    with torch.device("meta"):
        model = build_architecture(options.arch, kwargs)
    weights: dict[str, Any] = {"from": [source.text]}
    if source.kind == "file":
        path = Path(source.where)
        weights |= {"sha256": files.file_sha256(path), "size": path.stat().st_size}
    weights |= {key: value for key in ("weights_key", "strip_prefix") if (value := getattr(options, key))}
    item: dict[str, Any] = {"id": name, "summary": about.summary, "arch": options.arch}
    item |= {"arch_kwargs": kwargs} if kwargs else {}
    item |= {"num_classes": class_count(model, kwargs), "input": input_size_of(model, kwargs), "weights": weights}
    item |= {"adapter": options.adapter} if options.adapter else {}
    pair = parse_normaliser(options.normalize)
    item["normalize"] = {"mean": list(pair[0]), "std": list(pair[1])} if pair else None
    item |= {
        "transform": about.transform,
        "dataset": about.dataset,
        "threat": about.trained_for,
        "licence": about.licence,
    }
    if about.clean is not None:
        value, n = about.clean
        item["reported"] = [{"metric": "clean", "value": value, "n": n, "source": "said by the user"}]
    return item
