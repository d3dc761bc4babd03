"""The data sets of CLIP_benchmark: their tars, and the images that RobustVLM evaluates."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data.making import encoded, put, tar
from vitattack.core.errors import UsageError
from vitattack.data import load_data
from vitattack.data.catalogue import DATA_SETS
from vitattack.data.protocols import PROTOCOLS
from vitattack.data.sharded_sets import SHARDED_SETS, robustvlm_draw
from vitattack.models.clip.texts import ZERO_SHOT_SETS, count_classes

Members = list[tuple[str, bytes]]


@pytest.fixture
def uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitattack.data.sharded_sets.check_count", lambda found, wanted, where: None)


def pair(number: int, label: int, form: str = "WEBP") -> Members:
    key = f"s{number:07d}"
    return [(f"{key}.cls", b"%d" % label), (f"{key}.{form.lower()}", encoded((number, 0, 0), (20, 12), form))]


def pets(root: Path, folder: str = "clip-benchmark/wds_vtab-pets") -> Path:
    """Five images in tars of three and two, with classes 7, 6, 5, 4, 3."""
    numbers = [pair(number, 7 - number) for number in range(5)]
    for shard, part in enumerate((numbers[:3], numbers[3:])):
        tar(root / folder / "test" / f"{shard}.tar", [member for one in part for member in one])
    put(root / folder / "test" / "nshards.txt", b"2\n")
    return root


@pytest.mark.usefixtures("uncounted")
@pytest.mark.parametrize("folder", ["clip-benchmark/wds_vtab-pets", "wds_vtab-pets", "."])
def test_images_and_labels_come_tar_by_tar(tmp_path: Path, folder: str) -> None:
    data = load_data("wds-pets", data_dir=pets(tmp_path, folder), model_transform="resize8x8")
    images, labels = data.read(data.rows)
    assert labels.tolist() == [7, 6, 5, 4, 3] and data.num_classes == 37 and images.shape == (5, 3, 8, 8)
    red = (images[:, 0].mean((1, 2)) * 255).round()
    assert (red[1:] >= red[:-1]).all() and red[4] > red[0]
    assert data.text == "wds-pets@resize8x8"


@pytest.mark.usefixtures("uncounted")
def test_small_images_are_used_as_they_are(tmp_path: Path) -> None:
    tar(tmp_path / "test" / "0.tar", pair(0, 3, "PNG"))
    put(tmp_path / "test" / "nshards.txt", b"1")
    data = load_data("clip-zeroshot-13/cifar10", data_dir=tmp_path, model_transform="crop224")
    assert data.text == "clip-zeroshot-13/cifar10" and data.protocol["transform"] == "none"
    assert data.read([0])[0].shape == (1, 3, 12, 20)
    with pytest.raises(UsageError, match="used as it is: drop the transform"):
        load_data("clip-zeroshot-13/cifar10@crop224", data_dir=tmp_path)


def test_the_draw_is_that_of_webdataset_0_2_48() -> None:
    """Rows that its pipeline gave for tars of these sizes, read by torch's loader with four workers."""
    assert robustvlm_draw([1880])[:6] == (1729, 788, 1552, 1823, 861, 82)
    cars = robustvlm_draw([2000, 2000, 2000, 2000, 41])
    assert hashlib.sha256(repr(cars).encode()).hexdigest().startswith("c922d9aef440e682") and len(set(cars)) == 1000
    pcam = robustvlm_draw([10_000, 10_000, 10_000, 2768])
    assert pcam[48:54] == (3130, 9298, 16311, 16890, 10663, 14242), "readers take turns after 50"
    assert robustvlm_draw([9000, 9000, 300, 10, 2500, 2500])[-3:] == (10161, 13958, 15605)
    assert sorted(robustvlm_draw([3, 4])) == list(range(7))


@pytest.mark.usefixtures("uncounted")
def test_a_protocol_evaluates_the_draw_and_says_so(tmp_path: Path) -> None:
    data = load_data("clip-zeroshot-13/pets", data_dir=pets(tmp_path), px=224)
    assert data.rows == robustvlm_draw([3, 2]) and data.text == "clip-zeroshot-13/pets@bicubic224crop224"
    assert data.protocol["image_list_published"] and len(data.protocol["image_list_sha256"]) == 64
    assert data.protocol["deviations"] == []
    part = load_data("clip-zeroshot-13/pets[:2]", data_dir=tmp_path, px=224)
    assert part.rows == data.rows[:2] and part.protocol["image_list_sha256"] == data.protocol["image_list_sha256"]
    assert part.protocol["deviations"] == ["2 of 5 images"]


def test_there_are_thirteen_with_names_and_prompts_of_their_own() -> None:
    drawn = [name for name, protocol in PROTOCOLS.items() if protocol.draw is not None]
    assert len(drawn) == len(SHARDED_SETS) == 13 and set(ZERO_SHOT_SETS) == set(SHARDED_SETS)
    for name in SHARDED_SETS:
        assert count_classes(name) == DATA_SETS[name].num_classes, name
        assert PROTOCOLS["clip-zeroshot-13/" + name.removeprefix("wds-")].data == name
    assert "targeted" not in PROTOCOLS["clip-zeroshot-13/pcam"].threat


def test_class_names_are_as_long_as_those_on_the_hub() -> None:
    from vitattack.models.clip.texts import read_texts

    # bytes of classnames.txt and zeroshot_classification_templates.txt, where pages of the hub show them
    sizes = {
        "wds-cars": (5454, 168),
        "wds-fgvc-aircraft": (846, 78),
        "wds-caltech101": (971, 646),
        "wds-cifar100": (725, 480),
        "wds-cifar10": (60, 480),
    }
    for name, (names, prompts) in sizes.items():
        texts = read_texts(name, name)
        assert sum(len(one) + 1 for one in texts.classes) == names
        assert sum(len(one) + 2 for one in texts.prompts) == prompts, "{c} there"


def two(*members: Members) -> Members:
    return [member for one in members for member in one]


@pytest.mark.usefixtures("uncounted")
@pytest.mark.parametrize(
    ("members", "count", "message"),
    [
        (lambda: two(pair(0, 3))[:1], b"1", "only one of image and label of 's0000000'"),
        (lambda: [("s0.cls", b"three"), pair(0, 3)[1]], b"1", "only one of image and label"),
        (lambda: [("s0000000.cls", b"three"), pair(0, 3)[1]], b"1", "is no class number"),
        (lambda: [("s0000000.cls", b"9" * 50), pair(0, 3)[1]], b"1", "is no class number"),
        (lambda: pair(0, 37), b"1", "is class 37, and the set has 37"),
        (lambda: [("../s0000000.cls", b"3"), pair(0, 3)[1]], b"1", "a name that leads out of it"),
        (lambda: pair(0, 3), b"2", "1.tar' is missing, 2 files belong to the set"),
        (lambda: pair(0, 3), b"many", "does not say how many tars"),
        (lambda: pair(0, 3), b"9" * 15, "does not say how many tars"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, members: Callable[[], Members], count: bytes, message: str) -> None:
    tar(tmp_path / "test" / "0.tar", members())
    put(tmp_path / "test" / "nshards.txt", count)
    with pytest.raises(UsageError, match=message) as error:
        load_data("wds-pets", data_dir=tmp_path, model_transform="resize8x8")
    assert "\n" not in str(error.value)


def test_missing_files_and_counts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no clip-benchmark/wds_cars/test/nshards.txt in"):
        load_data("clip-zeroshot-13/cars", data_dir=tmp_path, px=224)
    with pytest.raises(UsageError, match="holds 5 images, the set has 3,669"):
        load_data("wds-pets", data_dir=pets(tmp_path))


@pytest.mark.usefixtures("uncounted")
def test_data_info_describes_it(tmp_path: Path) -> None:
    from click.testing import CliRunner
    from vitattack.cli.main import cli

    done = CliRunner().invoke(
        cli, ["data", "info", "clip-zeroshot-13/pets", "--data-dir", str(pets(tmp_path)), "--json"]
    )
    content = json.loads(done.output)
    assert content["opened"] and content["n"] == 5 and content["image_sizes"] == {"12 x 20": 5}
    bare = CliRunner().invoke(cli, ["data", "info", "clip-zeroshot-13/cars", "--json"])
    assert bare.exit_code == 0 and not json.loads(bare.output)["opened"]
