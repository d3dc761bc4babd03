"""Classes of models are matched to those of the data by name."""

from __future__ import annotations

import pytest

from vitattack.core.errors import UsageError
from vitattack.data.labels.class_names import aliases, aliases_of, imagenet_aliases, order_by_name
from vitattack.text.class_lists import CIFAR10, CIFAR100


def test_names_in_another_order_give_the_order() -> None:
    labels = ["dog", "cat", "lawn-mower"]
    assert order_by_name(labels, aliases(["cat", "lawn_mower", "Dog"]), "the data") == (1, 2, 0)


def test_names_in_the_same_order_change_nothing() -> None:
    assert order_by_name(CIFAR10, aliases(CIFAR10), "cifar10") is None
    assert order_by_name(["plane", *CIFAR10[1:]], aliases(CIFAR10), "cifar10") is None  # one word differs, at its place


def test_unknown_names_and_other_numbers_of_classes_change_nothing() -> None:
    assert order_by_name(["x", "y"], aliases(["a", "b"]), "the data") is None
    assert order_by_name(["b", "a"], aliases(["a", "b", "c"]), "the data") is None


@pytest.mark.parametrize("labels", [["b", "a", "x"], ["b", "b", "a"]])
def test_an_order_that_names_tell_in_part_is_refused(labels: list[str]) -> None:
    with pytest.raises(
        UsageError, match=r"in another order than those of the data, and its class \d, '.', cannot be told"
    ):
        order_by_name(labels, aliases(["a", "b", "c"]), "the data")


def test_imagenet_is_known_by_words_and_synsets() -> None:
    known = imagenet_aliases()
    assert len(known) == 1000 and {"tench", "tinca tinca", "n01440764", "tench, tinca tinca"} == known[0]
    assert order_by_name([next(iter(names)) for names in known], known, "imagenet") is None
    synsets = [next(name for name in names if name.startswith(("n0", "n1"))) for names in known]
    assert order_by_name([*synsets[1:], synsets[0]], known, "imagenet") == (999, *range(999))


def test_every_data_set_with_names_has_one_per_class() -> None:
    assert len(set(CIFAR100)) == 100
    for name, count in (("cifar10-demo", 10), ("cifar10-c/fog/3", 10), ("cifar100", 100), ("imagenet-v2", 1000)):
        known = aliases_of(name)
        assert known is not None and len(known) == count, name
    assert aliases_of("npz:x.npz") is None and aliases_of("cifar10x") is None
