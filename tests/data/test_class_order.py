"""A limit on images in the order of their classes draws from all classes, and a result says which share it covers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vitattack.core.errors import UsageError
from vitattack.data import load_data
from vitattack.data.catalogue import CIFAR10
from vitattack.evaluation.evaluate import evaluate
from vitattack.report.evaluation import table

from .making import encoded, put

EACH = 10


def folder(root: Path) -> str:
    for label in range(10):
        for k in range(EACH):
            put(root / "images" / f"class{label}" / f"{k}.png", encoded((k, label, 0), (32, 32)))
    return f"folder:{root / 'images'}"


def parquet(root: Path) -> str:
    path = root / CIFAR10 / "plain_text" / "test-00000-of-00001.parquet"
    path.parent.mkdir(parents=True)
    labels = [label for label in range(10) for _ in range(EACH)]
    images = [{"bytes": encoded((k, label, 0), (32, 32)), "path": ""} for k, label in enumerate(labels)]
    pq.write_table(pa.table({"img": images, "label": labels}), path)
    return "cifar10"


def arrays(root: Path) -> str:
    images = np.zeros((10 * EACH, 32, 32, 3), np.uint8)
    np.savez(root / "x.npz", image=images, label=np.repeat(np.arange(10), EACH))
    return f"npz:{root / 'x.npz'}"


def labels(text: str, root: Path, limit: int | None = None) -> Counter[int]:
    data = load_data(text, limit=limit, data_dir=root)
    return Counter(data.read(data.rows)[1].tolist())


@pytest.mark.parametrize("make", [folder, parquet, arrays])
def test_a_limit_on_images_in_class_order_draws_from_all_classes(tmp_path: Path, make: Callable[[Path], str]) -> None:
    text = make(tmp_path)
    found = labels(text, tmp_path, 64)
    assert sum(found.values()) == 64 and set(found) == set(range(10)) and set(found.values()) == {6, 7}
    data = load_data(text, limit=64, data_dir=tmp_path)
    assert data.text.endswith("[even:64:0]") and list(data.rows) == sorted(set(data.rows))
    assert load_data(f"{text}[even:64:0]", data_dir=tmp_path).rows == data.rows
    assert load_data(f"{text}[even:64:1]", data_dir=tmp_path).rows != data.rows
    assert set(labels(f"{text}[:25]", tmp_path)) == {0, 1, 2}  # rows that are asked for by number stay those
    assert load_data(text, limit=500, data_dir=tmp_path).text == load_data(text, data_dir=tmp_path).text
    spare = data.spare(20)
    assert not set(spare) & set(data.rows) and len(set(data.read(spare)[1].tolist())) == 10


def test_images_in_mixed_order_keep_their_rows() -> None:
    data = load_data("cifar10-demo", limit=64)
    assert data.rows == tuple(range(64)) and data.text == "cifar10-demo[:64]"
    with pytest.raises(UsageError, match="limit of 0 leaves no image"):
        load_data("cifar10-demo[limit:0]")


def test_a_result_says_how_many_classes_it_covers(tmp_path: Path) -> None:
    text = folder(tmp_path)
    few = evaluate("tiny-vit", "fgsm", data=f"{text}[:25]", threads=1)
    assert any("of 3 of the 10 classes" in doubt for doubt in few.doubts)
    assert any("of 3 of the 10 classes" in note for note in table(few).notes)
    assert not any("of the 10 classes" in doubt for doubt in evaluate("tiny-vit", "fgsm", data=text, threads=1).doubts)
