"""Names of classes: those of the data sets, and the match between them and the names that a model gives its classes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache

from vitattack.core.errors import UsageError
from vitattack.core.words import printable
from vitattack.data.labels.imagenet import synset_lemmas, synsets
from vitattack.data.labels.other_sets import CALTECH101
from vitattack.text.class_lists import CIFAR10, CIFAR100


@cache
def imagenet_aliases() -> tuple[frozenset[str], ...]:
    """For each class of ImageNet-1k its synset, its words, and all of them as one text."""
    return tuple(
        frozenset({synset, _plain(words), *map(_plain, words.split(","))})
        for synset, words in zip(synsets(), synset_lemmas(), strict=True)
    )


def aliases_of(set_name: str) -> tuple[frozenset[str], ...] | None:
    """The names under which the classes of a data set are known, in the order of its labels; None if it has none."""
    head = re.split(r"[/@\[]", set_name)[0]
    if re.fullmatch(r"cifar10(-demo|-calib|-train|-c)?", head):
        return aliases(CIFAR10)
    if re.fullmatch(r"cifar100(-train|-c)?", head):
        return aliases(CIFAR100)
    if head in ("imagenet", "imagenet-c", "imagenet-sketch", "imagenet-v2"):
        return imagenet_aliases()
    return aliases(CALTECH101) if head == "caltech101" else None


def aliases(names: Sequence[str]) -> tuple[frozenset[str], ...]:
    """Plain names as sets of one."""
    return tuple(frozenset({_plain(name)}) for name in names)


def order_by_name(labels: Sequence[str], known: Sequence[frozenset[str]], where: str) -> tuple[int, ...] | None:
    """Return for each class of a data set the class of the model that has its name, or None if the order is the same.

    A model that shares no name with the data keeps its order. Names that match in part, at other places, are refused.
    """
    if len(labels) != len(known):
        return None
    by_alias: dict[str, set[int]] = {}
    for number, names in enumerate(known):
        for name in names:
            by_alias.setdefault(name, set()).add(number)
    matched: list[int | None] = []
    for number, label in enumerate(labels):
        classes = by_alias.get(_plain(label), set())
        own = number in classes
        matched.append(number if own else next(iter(classes)) if len(classes) == 1 else None)
    if all(match in (None, number) for number, match in enumerate(matched)):
        return None
    if None in matched or max(Counter(matched).values()) > 1:
        at = matched.index(None) if None in matched else next(n for n, m in enumerate(matched) if matched.count(m) > 1)
        raise UsageError(
            f"the model's classes are in another order than those of {where}, and its class {at}, "
            f"'{printable(labels[at], 60)}', cannot be told by its name: correct its label names (id2label)"
        )
    return tuple(matched.index(number) for number in range(len(known)))


def _plain(name: str) -> str:
    return " ".join(re.sub(r"[\s_-]+", " ", name.lower()).split())
