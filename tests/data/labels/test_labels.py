"""Label maps against the synset lists timm ships, and the published lists byte for byte."""

from __future__ import annotations

import hashlib
from collections import Counter
from importlib.resources import files

import pytest
from timm.data import ImageNetInfo

from vitattack.core.errors import UsageError
from vitattack.data.labels import imagenet as labels
from vitattack.data.labels import other_sets


def test_class_numbers_are_those_of_timm() -> None:
    info = ImageNetInfo("imagenet-1k")
    assert list(labels.synsets()) == [info.index_to_label_name(i) for i in range(1000)]
    assert list(labels.synsets()) == sorted(labels.synsets())
    for kind in ("a", "r"):
        named = (files("timm.data") / "_info" / f"imagenet_{kind}_synsets.txt").read_text().split()
        assert [labels.synsets()[i] for i in labels.restricted_classes(kind)] == named and len(named) == 200
    assert labels.restricted_classes("a") != labels.restricted_classes("r")


def test_the_validation_labels_give_fifty_images_to_each_class() -> None:
    assert set(Counter(labels.validation_labels()).values()) == {50}
    # known images: the first is a sea snake, and the two that open RobustBench's list
    for number, synset in ((1, "n01751748"), (15253, "n09468604"), (20685, "n02823750")):
        assert labels.synsets()[labels.validation_labels()[number - 1]] == synset


def test_robustbench_list_is_the_published_one_byte_for_byte() -> None:
    ids = labels.robustbench_ids()
    text = labels.official_list(ids)
    assert (
        hashlib.sha256(text.encode()).hexdigest() == "d4121626d07722a0126c35b1563042e46a546f1a05ce705f2cdc635896d58574"
    )
    assert len(set(ids)) == 5000 and list(ids) != sorted(ids)
    absent = set(range(1000)) - {labels.validation_labels()[number - 1] for number in ids}
    assert absent == {147, 588, 964}


def test_imagenet100_lists_are_different_sets_of_100() -> None:
    lists = {name: labels.imagenet100(name) for name in labels.IMAGENET100}
    assert all(len(set(numbers)) == 100 and list(numbers) == sorted(numbers) for numbers in lists.values())
    assert len(set(lists["cmc"]) & set(lists["dedeswim-seed0"])) < 30
    # jax.random.choice(PRNGKey(0), 1000, (100,), replace=False), as jax drew before version 0.5
    assert lists["dedeswim-seed0"][:10] == (2, 12, 21, 29, 33, 43, 45, 47, 61, 68)


def test_the_sixteen_categories_hold_what_their_names_say() -> None:
    assert len(labels.CATEGORIES) == 16 and list(labels.CATEGORIES) == sorted(labels.CATEGORIES)
    numbers = [number for part in labels.CATEGORIES.values() for number in part]
    assert len(numbers) == len(set(numbers)) == 207
    by_synset = {
        "knife": "n03041632",
        "keyboard": "n03085013 n04505470",
        "elephant": "n02504013 n02504458",
        "bicycle": "n02835271 n03792782",
        "clock": "n02708093 n03196217 n04548280",
        "oven": "n04111531",
        "bear": "n02132136 n02133161 n02134084 n02134418",
        "bottle": "n02823428 n03937543 n03983396 n04557648 n04560804 n04579145 n04591713",
        "cat": "n02123045 n02123159 n02123394 n02123597 n02124075 n02125311",
    }
    for name, synsets in by_synset.items():
        assert [labels.synsets()[number] for number in labels.CATEGORIES[name]] == synsets.split()
    assert len(labels.CATEGORIES["dog"]) == 109 and len(labels.CATEGORIES["bird"]) == 49
    for name, first, last in (("dog", "n02085782", "n02113978"), ("bird", "n01514859", "n02056570")):
        assert labels.synsets()[labels.CATEGORIES[name][0]] == first
        assert labels.synsets()[labels.CATEGORIES[name][-1]] == last


def test_corruptions_and_caltech() -> None:
    assert len(other_sets.CORRUPTIONS) == 15 and len(other_sets.EXTRA_CORRUPTIONS) == 4
    assert len(other_sets.CALTECH101) == 102 and list(other_sets.CALTECH101) == sorted(other_sets.CALTECH101)


@pytest.mark.parametrize(("text", "message"), [("", "holds nothing"), ("n1", "'n1'"), ("n01440764 " * 2, "twice")])
def test_lists_of_classes_are_checked(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        labels.classes_from_synsets(text, "list")
