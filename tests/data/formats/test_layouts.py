"""The other image sets, as small folders in their official layouts."""

from __future__ import annotations

import io
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.making import encoded, put, tar, val
from vitattack.core.errors import UsageError
from vitattack.data import DataSet, load_data
from vitattack.data.catalogue import DATA_SETS
from vitattack.data.formats.layouts import CueConflict
from vitattack.data.formats.matfile import read_numbers
from vitattack.data.labels.imagenet import CATEGORIES, restricted_classes, synsets
from vitattack.data.labels.other_sets import CALTECH101, CORRUPTIONS, EXTRA_CORRUPTIONS
from vitattack.data.local_sets import LocalSet


@pytest.fixture
def uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sets as they are, but a few images are enough."""
    for module in ("openers", "hub_sets"):
        monkeypatch.setattr(f"vitattack.data.{module}.check_count", lambda found, wanted, where: None)


def labels_of(data: DataSet) -> list[int]:
    return data.read(data.rows)[1].tolist()


def test_every_corruption_of_imagenet_c_in_either_folder_layout(tmp_path: Path) -> None:
    places = DATA_SETS["imagenet-c"]
    assert isinstance(places, LocalSet) and set(places.parts) == {*CORRUPTIONS, *EXTRA_CORRUPTIONS}
    for inner in ("imagenet-c/fog/3", "ImageNet-C/weather/fog/4"):
        for n in (1, 2):
            put(tmp_path / inner / ("n01751748", "n09193705")[n - 1] / val(n), encoded((n, 0, 0), (224, 224)))
    data = load_data("imagenet-c/fog/3[:2]", data_dir=tmp_path, model_transform="bicubic256crop224")
    assert data.text == "imagenet-c/fog/3@crop224[:2]" and labels_of(data) == [65, 970]
    assert data.read(data.rows)[0].shape == (2, 3, 224, 224)
    with pytest.raises(UsageError, match="imagenet-c/fog/5' does not exist"):
        load_data("imagenet-c/fog/5[:1]", data_dir=tmp_path)
    (tmp_path / "imagenet-c").rename(tmp_path / "gone")
    assert len(load_data("imagenet-c/fog/4[:2]", data_dir=tmp_path)) == 2
    given = load_data("imagenet-c/fog/4[:1]", data_dir=tmp_path, transform="resize8x8")
    assert given.text == "imagenet-c/fog/4@resize8x8[:1]" and given.protocol["transform_from"] == "given"


def test_all_corruptions_of_imagenet_c_are_one_set_whose_first_rows_are_of_all_alike(tmp_path: Path) -> None:
    for at, kind in enumerate((*CORRUPTIONS, *EXTRA_CORRUPTIONS)):
        for severity in range(1, 6):
            put(
                tmp_path / "imagenet-c" / kind / str(severity) / "n01751748" / val(1),
                encoded((10 * at, severity, 0), (224, 224)),
            )
    data = load_data("imagenet-c-75[:75]", data_dir=tmp_path)
    x, y = data.read(data.rows)
    assert (x[:, 0, 0, 0] * 255).round().int().tolist() == [10 * at for at in range(15) for _ in range(5)]
    assert (x[:, 1, 0, 0] * 255).round().int().tolist() == [1, 2, 3, 4, 5] * 15 and set(y.tolist()) == {65}
    assert (
        len(data.source) == 3_750_000 and data.digest() != load_data("imagenet-c-75[:74]", data_dir=tmp_path).digest()
    )
    assert len(load_data("imagenet-c-95[:95]", data_dir=tmp_path)) == 95
    (tmp_path / "imagenet-c" / "spatter").rename(tmp_path / "gone")
    with pytest.raises(UsageError, match="has no spatter: get it from zenodo"):
        load_data("imagenet-c-95[:95]", data_dir=tmp_path)


@pytest.mark.usefixtures("uncounted")
@pytest.mark.parametrize(("name", "kind"), [("imagenet-a", "a"), ("imagenet-r", "r")])
@pytest.mark.parametrize("packed", [False, True])
def test_imagenet_a_and_r_count_labels_within_their_classes_or_in_all(
    tmp_path: Path, name: str, kind: str, packed: bool
) -> None:
    numbers = restricted_classes(kind)
    held = [(199, "b.jpg"), (0, "a.jpg"), (17, "c.jpg")]
    files = [(f"{name}/{synsets()[numbers[k]]}/{file}", encoded((k, 0, 0))) for k, file in held]
    if packed:
        tar(tmp_path / f"{name}.tar", [*files, (f"{name}/README.txt", b"words")])
    else:
        for path, content in files:
            put(tmp_path / path, content)
        put(tmp_path / name / "README.txt", b"words")
    data = load_data(name, data_dir=tmp_path)
    assert labels_of(data) == [0, 17, 199] and data.num_classes == 200 and data.classes is not None
    assert load_data(f"{name}/restricted", data_dir=tmp_path).text == data.text == f"{name}@none"
    free = load_data(f"{name}/unrestricted", data_dir=tmp_path)
    assert labels_of(free) == [numbers[k] for k in (0, 17, 199)] and free.num_classes == 1000 and free.classes is None
    assert free.text != data.text and free.digest() != data.digest()
    logits = torch.randn(2, 1000)
    assert torch.equal(data.classes.logits(logits), logits[:, list(numbers)])


@pytest.mark.usefixtures("uncounted")
def test_synsets_of_another_set_are_refused(tmp_path: Path) -> None:
    outside = next(n for n in range(1000) if n not in restricted_classes("a"))
    put(tmp_path / "imagenet-a" / synsets()[outside] / "a.jpg")
    with pytest.raises(UsageError, match="is no class of this set"):
        load_data("imagenet-a", data_dir=tmp_path)


@pytest.mark.usefixtures("uncounted")
def test_sketch_and_v2_labels(tmp_path: Path) -> None:
    for k in (999, 1):
        put(tmp_path / "imagenet-sketch" / "sketch" / synsets()[k] / f"sketch_{k}.JPEG")
    assert labels_of(load_data("imagenet-sketch", data_dir=tmp_path)) == [1, 999]
    for folder in ("10", "2", "999"):  # as words 10 comes before 2
        put(tmp_path / "imagenetv2-top-images-format-val" / folder / "a.jpeg")
    assert labels_of(load_data("imagenet-v2/top-images", data_dir=tmp_path)) == [2, 10, 999]
    with pytest.raises(UsageError, match="imagenetv2-matched-frequency-format-val: get it from"):
        load_data("imagenet-v2", data_dir=tmp_path)
    put(tmp_path / "imagenetv2-top-images-format-val" / "1000" / "a.jpeg")
    with pytest.raises(UsageError, match="named 0 to 999"):
        load_data("imagenet-v2/top-images", data_dir=tmp_path)


@pytest.mark.usefixtures("uncounted")
def test_cue_conflict_has_a_shape_and_a_texture_for_every_image(tmp_path: Path) -> None:
    for name in ("dog/dog1-elephant2.png", "airplane/airplane10-truck3.png", "cat/cat2-cat1.png"):
        put(tmp_path / "cue-conflict" / name)
    data = load_data("cue-conflict", data_dir=tmp_path)
    names = list(CATEGORIES)
    assert [names[k] for k in labels_of(data)] == ["airplane", "cat", "dog"] and data.num_classes == 16
    assert isinstance(data.source, CueConflict)
    assert [names[k] for k in data.source.textures] == ["truck", "cat", "elephant"]
    put(tmp_path / "cue-conflict" / "dog" / "cat1-dog1.png")
    with pytest.raises(UsageError, match="not SHAPE/SHAPE1-TEXTURE1.png"):
        load_data("cue-conflict", data_dir=tmp_path)


def test_categories_are_decided_by_the_mean_probability_of_their_members(tmp_path: Path) -> None:
    from vitattack.data.imagenet.classes import Classes

    classes = Classes("two", ((0, 1), (2,)))
    logits = torch.tensor(
        [[0.9, 0.0, 0.5, 0.0]]
    ).log()  # mean of 0.9 and 0 is 0.45, below 0.5: sum and max would differ
    shares = torch.tensor([0.9, 0.0, 0.5, 0.0]) / 1.4
    answered = classes.logits(logits)
    assert torch.allclose(answered.exp(), torch.stack([shares[:2].mean(), shares[2]])[None])
    assert answered.argmax().item() == 1


@pytest.mark.usefixtures("uncounted")
def test_caltech_labels_follow_the_names_in_lower_case(tmp_path: Path) -> None:
    for name in ("BACKGROUND_Google", "Faces", "accordion", "yin_yang"):
        put(tmp_path / "101_ObjectCategories" / name / "image_0001.jpg")
    data = load_data("caltech101", data_dir=tmp_path)
    assert sorted(CALTECH101[k] for k in labels_of(data)) == ["accordion", "background_google", "faces", "yin_yang"]
    assert data.num_classes == 102
    put(tmp_path / "101_ObjectCategories" / "unicorn" / "image_0001.jpg")
    with pytest.raises(UsageError, match="'unicorn', which is no class of Caltech-101"):
        load_data("caltech101", data_dir=tmp_path)


def matlab(**variables: list[int]) -> bytes:
    """A MATLAB 5 file as the official ones are: packed matrices of small numbers."""

    def element(kind: int, data: bytes) -> bytes:
        return struct.pack("<II", kind, len(data)) + data + b"\0" * (-len(data) % 8)

    made = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"
    for name, values in variables.items():
        body = element(6, struct.pack("<II", 9, 0)) + element(5, struct.pack("<ii", 1, len(values)))
        body += element(1, name.encode()) + element(2, bytes(values))
        packed = zlib.compress(element(14, body))
        made += struct.pack("<II", 15, len(packed)) + packed
    return made


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.int32, np.float64])
def test_lists_of_numbers_are_read_as_scipy_writes_them(packed: bool, kind: type) -> None:
    scipy = pytest.importorskip("scipy.io")
    for values in ([[5]], [[3, 1, 200]], [list(range(1, 251))]):
        stream = io.BytesIO()
        content = {"first": np.ones((2, 2)), "wanted": np.array(values, kind), "s": "text"}
        scipy.savemat(stream, content, do_compression=packed)
        assert read_numbers(stream.getvalue(), "wanted") == values[0]
        with pytest.raises(ValueError, match="no such list"):
            read_numbers(stream.getvalue(), "absent")


@pytest.mark.usefixtures("uncounted")
def test_flowers_follow_the_official_splits(tmp_path: Path) -> None:
    root = tmp_path / "flowers-102"
    for number in range(1, 7):
        put(root / "jpg" / f"image_{number:05d}.jpg", colour=number)
    put(root / "imagelabels.mat", matlab(labels=[77, 1, 102, 5, 6, 7]))
    put(root / "setid.mat", matlab(trnid=[2], valid=[6], tstid=[3, 1]))
    data = load_data("flowers102", data_dir=tmp_path)
    assert labels_of(data) == [76, 101] and data.num_classes == 102
    assert labels_of(load_data("flowers102-train", data_dir=tmp_path)) == [0]
    assert labels_of(load_data("flowers102-val", data_dir=tmp_path)) == [6]
    (root / "jpg" / "image_00003.jpg").unlink()
    with pytest.raises(UsageError, match=r"lacks image_00003.jpg, which setid.mat names"):
        load_data("flowers102", data_dir=tmp_path)
    (root / "setid.mat").write_bytes(b"no matrix")
    with pytest.raises(UsageError, match="holds no list 'tstid': put the official file there"):
        load_data("flowers102", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("imagenet-a", "7,500"), ("imagenet-r", "30,000"), ("imagenet-sketch", "50,889"), ("caltech101", "9,144")],
)
def test_a_wrong_number_of_images_is_said(tmp_path: Path, name: str, wanted: str) -> None:
    entry = DATA_SETS[name]
    assert isinstance(entry, LocalSet)
    folder = {"caltech101": "chair"}.get(name, synsets()[restricted_classes(name[-1] if name[-1] in "ar" else "a")[0]])
    put(tmp_path / entry.places[0] / folder / "a.jpg")
    with pytest.raises(UsageError, match=f"holds 1 images, the set has {wanted}: complete it"):
        load_data(name, data_dir=tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("imagenet-c", "name a part: gaussian_noise, shot_noise"),
        ("imagenet-c/frog/3", "did you mean fog"),
        ("imagenet-c/fog/6", "unknown severity '6' of ImageNet-C: write imagenet-c/fog/1 to imagenet-c/fog/5"),
        ("imagenet-c/fog", "has five severities"),
        ("imagenet-a/some", "unknown part 'some'"),
        ("imagenet-a/restricted/1", "is no part of"),
        ("imagenet/1", "is no part of"),
        ("cifar10/1", "is no part of"),
        ("cifar10@none", "used as it is: drop the transform"),
        ("imagenet@nonsense", "unknown transform 'nonsense'"),
        ("robustbench-imagenet-1k", "did you mean robustbench-imagenet-5k"),
        ("imagenet-sketch", "has no imagenet-sketch or ImageNet-Sketch: get it from"),
    ],
)
def test_wrong_names_say_what_there_is(tmp_path: Path, text: str, message: str) -> None:
    put(tmp_path / "imagenet-c" / "fog" / "readme")
    (tmp_path / "imagenet-a").mkdir()
    with pytest.raises(UsageError, match=message) as caught:
        load_data(text, data_dir=tmp_path)
    assert "\n" not in str(caught.value)


def test_without_a_folder_the_origin_is_named() -> None:
    with pytest.raises(UsageError, match=r"no --data-dir is given .* get it from people.eecs.berkeley.edu"):
        load_data("imagenet-a")
    entry = DATA_SETS["imagenet-a"]
    assert isinstance(entry, LocalSet) and replace(entry, rows=1).location(None) == "to be fetched"
