"""ImageNet validation in its layouts: one numbering, one digest, labels from the map."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.data.making import encoded, put, tar, val
from vitattack.core.errors import UsageError
from vitattack.data import load_data
from vitattack.data.imagenet import validation_set
from vitattack.data.labels.imagenet import imagenet100, official_list, synsets, validation_labels

NUMBERS = (1, 2, 3, 777, 50_000)


def image(number: int) -> bytes:
    return encoded((number % 256, 7, 9), (40 + number % 5, 30), "JPEG")


def as_tar(root: Path, numbers: tuple[int, ...] = NUMBERS) -> Path:
    tar(root / "ILSVRC2012_img_val.tar", [(val(n), image(n)) for n in reversed(numbers)])
    return root


def as_folder(root: Path, numbers: tuple[int, ...] = NUMBERS, place: str = "val") -> Path:
    for name, n in zip(official_list(numbers).split(), numbers, strict=True):
        put(root / place / name, image(n))
    return root


def as_flat(root: Path) -> Path:
    for n in NUMBERS:
        put(root / "ILSVRC2012_img_val" / val(n), image(n))
    return root


def as_parquet(root: Path) -> Path:
    parts = [NUMBERS[:3], NUMBERS[3:]]
    for part, file in zip(parts, validation_set.FILES, strict=False):
        names = [official_list((n,)).split("/") for n in part]
        cells = [
            {"bytes": image(n), "path": f"{name[1].removesuffix('.JPEG')}_{name[0]}.JPEG"}
            for n, name in zip(part, names, strict=True)
        ]
        path = root / validation_set.REPO / file
        path.parent.mkdir(parents=True, exist_ok=True)
        known = [validation_labels()[n - 1] for n in part]
        pq.write_table(pa.table({"image": cells, "label": known}), path, row_group_size=2)
    return root


def rows_file(tmp_path: Path, numbers: tuple[int, ...] = NUMBERS) -> Path:
    path = tmp_path / "rows.txt"
    path.write_text(" ".join(str(n - 1) for n in numbers))
    return path


def test_every_layout_gives_the_same_rows_labels_pixels_and_digest(tmp_path: Path) -> None:
    rows = rows_file(tmp_path)
    sets = [
        load_data(f"imagenet[file:{rows}]", data_dir=make(tmp_path / make.__name__), transform="resize8x8")
        for make in (as_tar, as_folder, as_flat, as_parquet)
    ]
    x, y = sets[0].read(sets[0].rows)
    assert y.tolist() == [validation_labels()[n - 1] for n in NUMBERS]
    assert (x[:, 0].mean((1, 2)) * 255).tolist() == pytest.approx([n % 256 for n in NUMBERS], abs=1.5)  # JPEG
    for other in sets[1:]:
        assert other.rows == sets[0].rows and other.text == sets[0].text and other.digest() == sets[0].digest()
        again = other.read(other.rows)
        assert torch.equal(again[0], x) and torch.equal(again[1], y)
    assert sets[0].num_classes == 1000 and sets[0].text.startswith("imagenet@resize8x8[file:")


def test_the_whole_set_wants_all_images_and_a_part_only_its_own(tmp_path: Path) -> None:
    as_folder(tmp_path)
    with pytest.raises(
        UsageError, match=r"holds 5 validation images and lacks 49,995 .* such as ILSVRC2012_val_00000004"
    ):
        load_data("imagenet", data_dir=tmp_path)
    part = load_data("imagenet[:3]", data_dir=tmp_path)
    assert part.rows == (0, 1, 2) and part.spare(5) == (776, 49_999)
    with pytest.raises(UsageError, match="lacks 1 of those asked"):
        load_data("imagenet[:4]", data_dir=tmp_path)


def test_robustbench_images_come_in_its_order_whatever_the_folder_lists(tmp_path: Path) -> None:
    first = (15253, 20685, 39611)
    as_folder(tmp_path, first)
    data = load_data("robustbench-imagenet-5k[:3]", data_dir=tmp_path, model_transform="resize8x8")
    assert [row + 1 for row in data.rows] == list(first)
    assert data.read(data.rows)[1].tolist() == [979, 441, 980]


def test_imagenet100_labels_count_within_the_list(tmp_path: Path) -> None:
    numbers = imagenet100("cmc")
    wanted = [n for n in range(1, 400) if validation_labels()[n - 1] in numbers]
    as_folder(tmp_path, tuple(wanted))
    data = load_data(f"imagenet100-cmc[:{len(wanted)}]", data_dir=tmp_path, transform="resize8x8")
    assert [row + 1 for row in data.rows] == wanted and data.num_classes == 100
    labels = data.read(data.rows)[1].tolist()
    assert [numbers[label] for label in labels] == [validation_labels()[n - 1] for n in wanted]
    listed = tmp_path / "mine.txt"
    listed.write_text("\n".join(synsets()[n] for n in numbers))
    mine = load_data(f"imagenet-classes:{listed}[:{len(wanted)}]", data_dir=tmp_path, transform="resize8x8")
    assert mine.rows == data.rows and mine.digest() == data.digest()
    assert mine.text.startswith("imagenet-classes:") and str(tmp_path) not in mine.text


def test_wrong_folders_and_files_get_one_line(tmp_path: Path) -> None:
    def refused(message: str, root: Path, text: str = "imagenet[:1]") -> None:
        with pytest.raises(UsageError, match=message) as caught:
            load_data(text, data_dir=root)
        assert "\n" not in str(caught.value)

    swapped = tmp_path / "swapped"
    put(swapped / "val" / "n01440764" / val(1))
    refused("ILSVRC2012_val_00000001.JPEG under n01440764, which is not its class n01751748", swapped)
    unknown = tmp_path / "unknown"
    put(unknown / "val" / "n00000001" / val(1))
    refused("n00000001, which is no ImageNet-1k synset", unknown)
    other = tmp_path / "other"
    put(other / "val" / "n01440764" / "a.png")
    refused("no ILSVRC-2012 validation image: use folder:", other)
    as_flat(tmp_path / "flat")
    refused("no class folders: write --data imagenet", tmp_path, f"folder:{tmp_path}/flat/ILSVRC2012_img_val")
    beyond = tmp_path / "beyond"
    put(beyond / "val" / val(50_001))
    refused("no ILSVRC-2012 validation image", beyond)
    double = as_folder(tmp_path / "double")
    put(double / "val" / "ILSVRC2012_val_00000001.jpeg")
    refused("validation image 1 twice", double)
    (tmp_path / "empty").mkdir()
    refused("has no ImageNet validation set: put ILSVRC2012_img_val.tar there", tmp_path / "empty")
    parquet = as_parquet(tmp_path / "parquet")
    path = parquet / validation_set.REPO / validation_set.FILES[0]
    table = pq.read_table(path)
    pq.write_table(table.set_column(1, "label", pa.array([5, 6, 7])), path)
    refused("labels '.*' 5: the file is damaged", parquet)
    bare = [{"bytes": image(1), "path": None}]
    pq.write_table(pa.table({"image": pa.array(bare, table.schema.field("image").type), "label": [65]}), path)
    refused("does not say which image a row is", parquet)
