"""Openers of the data sets in official layouts; what reads pixels is imported when a set is opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from vitattack.data.entry import OpenedSet, Source, check_count
from vitattack.data.imagenet.classes import Classes, single_classes
from vitattack.data.labels.imagenet import CATEGORIES, restricted_classes
from vitattack.data.local_sets import Opener


def cifar_c(num_classes: int) -> Opener:
    """CIFAR-10-C or CIFAR-100-C: one file per corruption, all severities or one of them."""

    def open_part(path: Path, part: str, transform: str) -> OpenedSet:
        from vitattack.data.formats.arrays import corrupted_cifar

        corruption, _, severity = part.partition("/")
        return OpenedSet(corrupted_cifar(path.parent, corruption, int(severity) if severity else None, num_classes))

    return open_part


def imagenet_c(path: Path, part: str, transform: str) -> OpenedSet:
    """One corruption of ImageNet-C at one severity: the validation images again."""
    from vitattack.data.imagenet.validation import open_validation_images

    return OpenedSet(open_validation_images(path / part.partition("/")[2], transform))


def all_of_imagenet_c(places: Sequence[Sequence[str]]) -> Opener:
    """All severities of some corruptions of ImageNet-C, each at the first of its places that exists."""

    def open_all(path: Path, part: str, transform: str) -> OpenedSet:
        from vitattack.data.imagenet import all_corruptions

        return all_corruptions.open_all(path, transform, places)

    return open_all


def imagenet_subset(name: str, kind: str, rows: int) -> Opener:
    """ImageNet-A or ImageNet-R ("a", "r"): decided among its 200 classes, or among all where unrestricted."""

    def open_part(path: Path, part: str, transform: str) -> OpenedSet:
        from vitattack.data.formats.layouts import synset_folders

        unrestricted = part == "unrestricted"
        source = synset_folders(path, transform, restricted_classes(kind), number_within=not unrestricted)
        check_count(len(source), rows, str(path))
        return OpenedSet(source, None if unrestricted else single_classes(name, restricted_classes(kind)))

    return open_part


def cue_conflict(rows: int) -> Opener:
    """Cue conflict images, decided among 16 categories of ImageNet classes."""

    def open_part(path: Path, part: str, transform: str) -> OpenedSet:
        from vitattack.data.formats.layouts import CueConflict

        source = CueConflict(path, transform)
        check_count(len(source), rows, str(path))
        return OpenedSet(source, Classes("cue-conflict", tuple(CATEGORIES.values())))

    return open_part


def imagenet_sketch(rows: int) -> Opener:
    """ImageNet-Sketch, synset folders of all classes."""

    def read(path: Path, transform: str) -> Source:
        from vitattack.data.formats.layouts import synset_folders

        return synset_folders(path, transform, None, number_within=False)

    return _counted(read, rows)


def imagenet_v2(rows: int) -> Opener:
    """A part of ImageNet-V2, folders named by class number."""

    def read(path: Path, transform: str) -> Source:
        from vitattack.data.formats.layouts import numbered_folders

        return numbered_folders(path, transform)

    return _counted(read, rows)


def caltech101(rows: int) -> Opener:
    """Caltech-101 with its background class."""

    def read(path: Path, transform: str) -> Source:
        from vitattack.data.formats.layouts import caltech101

        return caltech101(path, transform)

    return _counted(read, rows)


def flowers102(split: str, rows: int) -> Opener:
    """One of the three official splits of Oxford Flowers-102."""

    def read(path: Path, transform: str) -> Source:
        from vitattack.data.formats.layouts import flowers102

        return flowers102(path, transform, split)

    return _counted(read, rows)


def _counted(read: Callable[[Path, str], Source], rows: int) -> Opener:
    def open_part(path: Path, part: str, transform: str) -> OpenedSet:
        source = read(path, transform)
        check_count(len(source), rows, str(path))
        return OpenedSet(source)

    return open_part
