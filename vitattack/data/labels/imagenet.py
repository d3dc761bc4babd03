"""Class numbers of ImageNet-1k: from synsets and published lists, never from the order in which a folder lists its files."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from vitattack.core.assets import EMBEDDED
from vitattack.core.errors import UsageError

VALIDATION_IMAGES = 50_000  # of ILSVRC-2012


def _numbers_in(file: str) -> tuple[int, ...]:
    import numpy as np  # a list of the data sets needs none of these numbers

    return tuple(np.load(EMBEDDED / file, allow_pickle=False).tolist())


def _timm_list(name: str) -> list[str]:
    """The words of a list that timm ships."""
    return _timm_file(name).split()


def _timm_file(name: str) -> str:
    """A text that timm ships; timm itself is not imported, since it loads torch."""
    spec = find_spec("timm")
    assert spec is not None and spec.origin is not None  # timm is a dependency
    return (Path(spec.origin).parent / "data" / "_info" / name).read_text()


@cache
def synsets() -> tuple[str, ...]:
    """The 1,000 synsets of ImageNet-1k in the order of their class numbers."""
    return tuple(_timm_list("imagenet_synsets.txt"))


@cache
def synset_lemmas() -> tuple[str, ...]:
    """The words for each class of ImageNet-1k, separated by commas."""
    lines = (line.partition("\t") for line in _timm_file("imagenet_synset_to_lemma.txt").splitlines())
    words = {synset: text for synset, _, text in lines}
    return tuple(words[synset] for synset in synsets())


@cache
def synset_numbers() -> dict[str, int]:
    """The class number of each synset."""
    return {synset: number for number, synset in enumerate(synsets())}


@cache
def restricted_classes(kind: str) -> tuple[int, ...]:
    """The 200 ImageNet-1k classes of ImageNet-A or ImageNet-R ("a", "r"), ascending."""
    return tuple(sorted(int(word) for word in _timm_list(f"imagenet_{kind}_indices.txt")))


@cache
def validation_labels() -> tuple[int, ...]:
    """The class of every validation image: entry k is ILSVRC2012_val_{k + 1}."""
    return _numbers_in("imagenet-val-labels.npy")


@cache
def robustbench_ids() -> tuple[int, ...]:
    """The numbers of RobustBench's 5,000 validation images, in the order of its list."""
    return _numbers_in("robustbench-imagenet-5k.npy")


def official_list(numbers: tuple[int, ...]) -> str:
    """Validation images in the notation of the published lists: SYNSET/ILSVRC2012_val_00000001.JPEG, one per line."""
    labels, names = validation_labels(), synsets()
    return "\n".join(f"{names[labels[number - 1]]}/ILSVRC2012_val_{number:08d}.JPEG" for number in numbers)


# The sha256 of each list as published, byte for byte. The classes of a set are numbered by ascending synset.
IMAGENET100 = {
    "cmc": "79f3f1552ccc478ce24bd934b4573625db584ddc1f4643ae23c994a94cb11397",
    "dedeswim-seed0": "eb5fadec3a1c00c43dc0a77a589df05dddfea08fece343aa2565934e82c95e2b",
}


@cache
def imagenet100(name: str) -> tuple[int, ...]:
    """The classes of a named ImageNet-100, ascending."""
    text = (EMBEDDED / f"imagenet100-{name}.txt").read_bytes()
    if hashlib.sha256(text).hexdigest() != IMAGENET100[name]:
        raise UsageError(f"the shipped list imagenet100-{name} was changed: install vitattack again")
    return classes_from_synsets(text.decode(), f"imagenet100-{name}")


def classes_from_synsets(text: str, where: str) -> tuple[int, ...]:
    """The ImageNet-1k classes a list of synsets names, ascending."""
    words = text.split()
    odd = next((word for word in words if word not in synset_numbers()), None)
    if odd is not None or not words:
        raise UsageError(
            f"{where} holds {ascii(odd)[:24] if odd else 'nothing'}: write one ImageNet-1k synset per line"
        )
    if len(set(words)) < len(words):
        raise UsageError(f"{where} names a synset twice: each class counts once")
    return tuple(sorted(synset_numbers()[word] for word in words))


def folder_labels(names: list[str]) -> tuple[dict[str, int], int | None]:
    """Class folders to labels, and how many classes the set has where the names tell."""
    if all(re.fullmatch(r"n\d{8}", name) for name in names):
        strange = [name for name in names if name not in synset_numbers()]
        if strange:
            raise UsageError(f"folder '{strange[0]}' is no ImageNet-1k synset: remove it or rename the class folders")
        return {name: synset_numbers()[name] for name in names}, len(synsets())
    if all(name.isascii() and name.isdecimal() and len(name) < 7 for name in names):
        return {name: int(name) for name in names}, None  # some classes of a set whose size nobody says
    return {name: number for number, name in enumerate(names)}, len(names)


def _span(text: str) -> tuple[int, ...]:
    parts = [part.split("-") for part in text.split()]
    return tuple(number for part in parts for number in range(int(part[0]), int(part[-1]) + 1))


# The 16 entry-level categories of Geirhos et al. (2019) and their ImageNet-1k classes, 207 in all.
CATEGORIES = {
    "airplane": _span("404"),
    "bear": _span("294-297"),
    "bicycle": _span("444 671"),
    "bird": _span("8 10-16 18-20 22-24 80-83 87-96 98-100 127-133 135-145"),
    "boat": _span("472 554 625 814 914"),
    "bottle": _span("440 720 737 898 899 901 907"),
    "car": _span("436 511 817"),
    "cat": _span("281-286"),
    "chair": _span("423 559 765 857"),
    "clock": _span("409 530 892"),
    "dog": _span("152-191 193-203 205-226 228-241 243-250 252-257 259 261-263 265-268"),
    "elephant": _span("385 386"),
    "keyboard": _span("508 878"),
    "knife": _span("499"),
    "oven": _span("766"),
    "truck": _span("555 569 656 675 717 734 864 867"),
}
