"""Names, rows, labels and layouts."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from vitattack.core.errors import UsageError
from vitattack.data import from_tensors, load_data
from vitattack.data.catalogue import DATA_SETS
from vitattack.data.hub_sets import HubSet
from vitattack.data.transform import make_transform


def png(colour: tuple[int, int, int], size: tuple[int, int] = (32, 32)) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size, colour).save(stream, format="PNG")
    return stream.getvalue()


def hub_layout(root: Path, rows: int = 25, group: int = 10) -> Path:
    """A miniature of the hub's CIFAR-10 test file: the red channel of row i is i."""
    entry = DATA_SETS["cifar10"]
    assert isinstance(entry, HubSet)
    path = root / entry.repo / entry.file
    path.parent.mkdir(parents=True)
    images = [{"bytes": png((i, 0, 0)), "path": None} for i in range(rows)]
    pq.write_table(pa.table({"img": images, "label": [i % 10 for i in range(rows)]}), path, row_group_size=group)
    return root


def test_the_embedded_sets_are_what_they_say() -> None:
    demo = load_data("cifar10-demo")
    x, y = demo.read(demo.rows)
    assert x.shape == (1000, 3, 32, 32) and x.dtype == torch.float32
    assert float(x.min()) == 0.0 and float(x.max()) == 1.0
    assert torch.bincount(y).tolist() == [100] * 10
    calibration = load_data("cifar10-calib")
    assert sorted(torch.bincount(calibration.read(calibration.rows)[1]).tolist()) == [12, 12] + [13] * 8
    assert not {row.numpy().tobytes() for row in x} & {
        row.numpy().tobytes() for row in calibration.read(calibration.rows)[0]
    }


@pytest.mark.full_cifar10
def test_the_embedded_images_are_the_rows_they_name(cifar10_dir: Path) -> None:
    from vitattack.core.assets import EMBEDDED

    for name, source in (("cifar10-demo", "cifar10"), ("cifar10-calib", "cifar10-train")):
        indices = pq.read_table(EMBEDDED / f"{name}.parquet")["index"].to_pylist()
        part, whole = load_data(name), load_data(source, data_dir=cifar10_dir)
        assert len(whole) == DATA_SETS[source].rows
        chosen = list(range(0, len(indices), 7))
        x, y = part.read(chosen)
        x_whole, y_whole = whole.read([indices[i] for i in chosen])
        assert torch.equal(x, x_whole) and torch.equal(y, y_whole)


def test_rows_are_read_across_row_groups_in_any_order(tmp_path: Path) -> None:
    data = load_data("cifar10", data_dir=hub_layout(tmp_path))
    rows = [24, 0, 10, 9, 19, 20]
    x, y = data.read(rows)
    assert (x[:, 0, 0, 0] * 255).round().int().tolist() == rows
    assert y.tolist() == [4, 0, 0, 9, 9, 0]


@pytest.mark.parametrize(
    ("text", "rows", "canonical"),
    [
        ("cifar10", range(25), "cifar10"),
        ("cifar10[:5]", range(5), "cifar10[:5]"),
        ("cifar10[:99]", range(25), "cifar10"),
        ("cifar10[20:]", range(20, 25), "cifar10[20:25]"),
        ("cifar10[3:7]", range(3, 7), "cifar10[3:7]"),
    ],
)
def test_row_ranges(tmp_path: Path, text: str, rows: range, canonical: str) -> None:
    data = load_data(text, data_dir=hub_layout(tmp_path))
    assert data.rows == tuple(rows) and data.text == canonical


def test_random_subsets_are_deterministic_sorted_and_differ_by_seed(tmp_path: Path) -> None:
    root = hub_layout(tmp_path)
    one, two, other = (load_data(f"cifar10[random:8:{seed}]", data_dir=root) for seed in (1, 1, 2))
    assert one.rows == two.rows == tuple(sorted(one.rows)) and len(set(one.rows)) == 8
    assert one.rows != other.rows and one.digest() != other.digest()
    assert one.text == "cifar10[random:8:1]"


def test_rows_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("4\n2\n17\n")
    data = load_data(f"cifar10[file:{tmp_path}/rows.txt]", data_dir=hub_layout(tmp_path / "data"))
    assert data.rows == (4, 2, 17)
    assert data.text.startswith("cifar10[file:") and str(tmp_path) not in data.text


def test_batches_are_cut_from_the_first_row() -> None:
    assert list(load_data("cifar10-demo[:10]").cut(4)) == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9)]


def test_synset_folders_get_their_imagenet_labels(tmp_path: Path) -> None:
    # n01440764 is class 0, n01443537 class 1, n15075141 class 999: a folder without the second must not shift the third
    for synset in ("n15075141", "n01440764"):
        (tmp_path / synset).mkdir()
        (tmp_path / synset / "a.png").write_bytes(png((9, 9, 9)))
    data = load_data(f"folder:{tmp_path}")
    assert data.num_classes == 1000
    assert data.read(data.rows)[1].tolist() == [0, 999]


def test_plain_and_numeric_class_folders(tmp_path: Path) -> None:
    for root, names in (("words", ("cat", "dog")), ("numbers", ("10", "2"))):
        for name in names:
            (tmp_path / root / name).mkdir(parents=True)
            (tmp_path / root / name / "a.png").write_bytes(png((1, 2, 3), (8, 8)))
    assert load_data(f"folder:{tmp_path}/words").read([0, 1])[1].tolist() == [0, 1]
    numbers = load_data(f"folder:{tmp_path}/numbers")
    assert numbers.read([0, 1])[1].tolist() == [10, 2] and numbers.num_classes is None


def test_hidden_and_empty_folders_are_no_classes(tmp_path: Path) -> None:
    for name in (".ipynb_checkpoints", "__MACOSX", "cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.png").write_bytes(png((1, 2, 3), (8, 8)))
    (tmp_path / "aardvark").mkdir()
    (tmp_path / "cat" / "b.png").mkdir()
    data = load_data(f"folder:{tmp_path}")
    assert data.num_classes == 2 and data.read(data.rows)[1].tolist() == [0, 1]


def test_brackets_in_a_path_are_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "f[1]" / "cat").mkdir(parents=True)
    (tmp_path / "f[1]" / "cat" / "a.png").write_bytes(png((1, 2, 3), (8, 8)))
    (tmp_path / "rows[1].txt").write_text("0")
    assert len(load_data(f"folder:{tmp_path}/f[1]")) == 1
    assert load_data(f"cifar10-demo[file:{tmp_path}/rows[1].txt]").rows == (0,)


def test_the_transform_is_part_of_the_text_and_matches_torchvision(tmp_path: Path) -> None:
    import torchvision.transforms as tv

    noise = np.random.default_rng(0).integers(0, 256, (300, 411, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    bicubic = tv.Compose([tv.Resize(256, tv.InterpolationMode.BICUBIC), tv.CenterCrop(224)])
    square = tv.Resize([224, 224])
    for ours, theirs in (("bicubic256crop224", bicubic), ("resize224x224", square)):
        assert np.array_equal(np.asarray(make_transform(ours)(image)), np.asarray(theirs(image)))
        turned = image.transpose(Image.Transpose.ROTATE_90)
        assert np.array_equal(np.asarray(make_transform(ours)(turned)), np.asarray(theirs(turned)))
    (tmp_path / "n01440764").mkdir()
    image.save(tmp_path / "n01440764" / "a.png")
    data = load_data(f"folder:{tmp_path}", transform="bicubic256crop224")
    assert data.text == f"folder:{tmp_path}@bicubic256crop224"
    assert data.read([0])[0].shape == (1, 3, 224, 224)


def test_npz_files(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 3), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", image=images, label=np.arange(4))
    x, y = load_data(f"npz:{tmp_path}/a.npz").read([3, 1])
    assert torch.equal(x, torch.from_numpy(images[[3, 1]]).permute(0, 3, 1, 2) / 255) and y.tolist() == [3, 1]


def test_digests_follow_the_content(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    for colour in (1, 2):
        (tmp_path / "cat" / f"{colour}.png").write_bytes(png((colour, 0, 0)))
    before = load_data(f"folder:{tmp_path}[:1]").digest(), load_data(f"folder:{tmp_path}").digest()
    (tmp_path / "cat" / "2.png").write_bytes(png((3, 0, 0)))
    after = load_data(f"folder:{tmp_path}[:1]").digest(), load_data(f"folder:{tmp_path}").digest()
    assert before[0] == after[0] and before[1] != after[1]
    x = torch.rand(3, 3, 4, 4)
    assert from_tensors(x, torch.arange(3)).text != from_tensors(x.flip(0), torch.arange(3)).text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cifar", "unknown data set 'cifar': did you mean cifar10"),
        ("cifar10-demo[:0]", "hold no image"),
        ("cifar10-demo[1000:]", "hold no image"),
        ("cifar10-demo[first]", "rows 'first' are not understood"),
        ("cifar10-demo[random:1001:0]", "cannot draw 1001 of 1000"),
        ("cifar10-demo[file:nowhere.txt]", "cannot read indices"),
        ("folder:nowhere", "does not exist"),
        ("npz:nowhere.npz", "does not exist"),
        ("", "no name"),
        ("cifar10-demo[random:5:" + "9" * 40 + "]", "are not understood"),
        ("folder:" + "x" * 300, "cannot be a path"),
    ],
)
def test_wrong_names_are_answered_with_the_fix(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load_data(text)
    assert "\n" not in str(caught.value)


def test_hostile_and_broken_files(tmp_path: Path) -> None:
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "a.png").write_bytes(png((0, 0, 0)))
    with pytest.raises(UsageError, match="images but no class folders"):
        load_data(f"folder:{tmp_path}/flat")
    (tmp_path / "bad" / "cat").mkdir(parents=True)
    (tmp_path / "bad" / "cat" / "a.png").write_bytes(b"no image")
    with pytest.raises(UsageError, match=r"a\.png is not a readable image"):
        load_data(f"folder:{tmp_path}/bad").read([0])
    (tmp_path / "odd" / "n00000001").mkdir(parents=True)
    (tmp_path / "odd" / "n00000001" / "a.png").write_bytes(png((0, 0, 0)))
    with pytest.raises(UsageError, match="is no ImageNet-1k synset"):
        load_data(f"folder:{tmp_path}/odd")
    np.savez(tmp_path / "pickled.npz", image=np.array([object()]), label=np.arange(1))
    with pytest.raises(UsageError, match="not a plain npz file"):
        load_data(f"npz:{tmp_path}/pickled.npz")
    (tmp_path / "rows.txt").write_text("1 1")
    with pytest.raises(UsageError, match="1 rows twice"):
        load_data(f"cifar10-demo[file:{tmp_path}/rows.txt]")
    with pytest.raises(UsageError, match="give --data-dir a folder with the hub's layout"):
        load_data("cifar10", data_dir=tmp_path)
    deep = io.BytesIO()
    Image.fromarray(np.full((4, 4), 30000, dtype=np.uint16)).save(deep, format="PNG")
    (tmp_path / "bad" / "cat" / "a.png").write_bytes(deep.getvalue())
    with pytest.raises(UsageError, match="more than 8 bits per channel"):
        load_data(f"folder:{tmp_path}/bad").read([0])
    for name, arrays in (
        ("words", {"image": np.zeros((1, 4, 4, 3), np.uint8), "label": np.array(["a"])}),
        ("swapped", {"image": np.zeros((1, 4, 4, 3), ">f4"), "label": np.zeros(1, int)}),
    ):
        np.savez(tmp_path / f"{name}.npz", **arrays)
        with pytest.raises(UsageError, match="use uint8 or float images, integer labels"):
            load_data(f"npz:{tmp_path}/{name}.npz")
    np.save(tmp_path / "plain.npy", np.zeros(3))
    (tmp_path / "plain.npy").rename(tmp_path / "plain.npz")
    with pytest.raises(UsageError, match="not a plain npz file"):
        load_data(f"npz:{tmp_path}/plain.npz")
    table = pa.table({"img": [{"bytes": png((0, 0, 0)), "path": None}], "label": pa.array([None], pa.int64())})
    empty = hub_layout(tmp_path / "empty", rows=0)
    with pytest.raises(UsageError, match="holds no image"):
        load_data("cifar10", data_dir=empty)
    null = hub_layout(tmp_path / "null", rows=1)
    pq.write_table(table, null / "uoft-cs/cifar10/plain_text/test-00000-of-00001.parquet")
    with pytest.raises(UsageError, match="has no image or no label"):
        load_data("cifar10", data_dir=null).read([0])
    root = hub_layout(tmp_path / "torn")
    path = root / "uoft-cs/cifar10/plain_text/test-00000-of-00001.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UsageError, match="not a readable parquet file"):
        load_data("cifar10", data_dir=root)


def test_without_network_and_cache_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UsageError, match="cannot fetch uoft-cs/cifar10 .* give --data-dir"):
        load_data("cifar10")


def test_tensors_are_checked() -> None:
    with pytest.raises(UsageError, match="floats in"):
        from_tensors(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(2).long())
    with pytest.raises(UsageError, match="one label per image"):
        from_tensors(torch.zeros(2, 3, 4, 4), torch.zeros(3).long())
    with pytest.raises(UsageError, match="no images"):
        from_tensors(torch.zeros(0, 3, 4, 4), torch.zeros(0).long())
    with pytest.raises(UsageError, match="integers"):
        from_tensors(torch.zeros(2, 3, 4, 4), torch.zeros(2))


def test_rows_of_a_folder_are_numbered_folder_by_folder(tmp_path: Path) -> None:
    for name in ("cat-2", "cat"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.png").write_bytes(png((1, 2, 3), (8, 8)))
    (tmp_path / "cat" / ".thumbs").mkdir()
    (tmp_path / "cat" / ".thumbs" / "a.png").write_bytes(png((1, 2, 3), (8, 8)))
    data = load_data(f"folder:{tmp_path}")
    assert data.read(data.rows)[1].tolist() == [0, 1]
    again = load_data(data.text)
    assert again.text == data.text == f"folder:{tmp_path}@none" and again.digest() == data.digest()


def test_a_set_in_the_cache_of_the_hub_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.file_download.HF_HUB_CACHE", str(tmp_path), raising=False)
    assert not DATA_SETS["cifar10"].is_at_hand(None)
    commit = "a" * 40
    home = tmp_path / "datasets--uoft-cs--cifar10"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(commit)
    hub_layout(tmp_path / "made", rows=3)
    (home / "snapshots").mkdir()
    (tmp_path / "made" / "uoft-cs" / "cifar10").rename(home / "snapshots" / commit)
    assert DATA_SETS["cifar10"].is_at_hand(None)
    assert len(load_data("cifar10")) == 3


@pytest.mark.parametrize(
    ("offline", "lost", "local", "reason"),
    [
        ("1", None, True, "VITATTACK_OFFLINE is set"),
        ("0", None, False, "OSError"),
        ("0", "huggingface.co", True, "huggingface.co cannot be reached"),  # its client would try for half a minute
    ],
)
def test_the_hub_is_asked_only_where_it_may_and_can_be(
    offline: str, lost: str | None, local: bool, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def download(*words: str, **options: object) -> str:
        asked.append(options["local_files_only"])
        raise OSError("no")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setattr("vitattack.models.weights.hub.unreachable_host", lambda: lost)
    monkeypatch.setenv("VITATTACK_OFFLINE", offline)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with pytest.raises(UsageError, match=rf"cannot fetch uoft-cs/cifar10 from the hub \({reason}\)"):
        load_data("cifar10")
    assert asked == [local]
