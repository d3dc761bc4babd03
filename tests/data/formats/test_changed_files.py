"""A data file that changes while a run reads it stops the run: its rows are never stored under the old digest."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vitattack.core.errors import VitattackError
from vitattack.data import DataSet, load_data
from vitattack.data.catalogue import CIFAR10
from vitattack.evaluation.evaluate import evaluate
from vitattack.evaluation.listener import EvaluationListener
from vitattack.records.job import Job
from vitattack.records.record import RecordListener, SampleRecord

from ..making import encoded, put, tar

GROUP = 4  # rows of a parquet group, which is read at once


def folder(root: Path, shade: int) -> str:
    for label in range(10):
        put(root / "images" / f"class{label}" / "a.png", encoded((shade, label, 0), (32, 32)))
    return f"folder:{root / 'images'}"


def arrays(root: Path, shade: int) -> str:
    file = root / "images.npz"
    np.savez(file, image=np.full((10, 32, 32, 3), shade, np.uint8), label=np.arange(10))
    return f"npz:{file}"


def table(root: Path, shade: int) -> str:
    path = root / CIFAR10 / "plain_text" / "test-00000-of-00001.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    images = [{"bytes": encoded((shade, label, 0), (32, 32)), "path": ""} for label in range(10)]
    pq.write_table(pa.table({"img": images, "label": list(range(10))}), path, row_group_size=GROUP)
    return "cifar10"


def sketches(root: Path, shade: int) -> str:
    """A tar in one of the official layouts."""
    names = ("n01440764", "n01443537", "n01484850")
    tar(root / "imagenet-a.tar", [(f"imagenet-a/{n}/{k}.png", encoded((shade, k, 0))) for n in names for k in range(3)])
    return "imagenet-a"


@pytest.mark.parametrize("make", [folder, arrays, table])
def test_rows_that_change_after_the_digest_are_refused(tmp_path: Path, make: Callable[[Path, int], str]) -> None:
    data = load_data(make(tmp_path, 10), data_dir=tmp_path)
    data.digest()
    before, _ = data.read(data.rows[:GROUP])
    again, _ = data.read(data.rows[:GROUP])
    assert before.equal(again)
    make(tmp_path, 20)
    with pytest.raises(VitattackError, match="has changed since it was opened"):
        data.read(data.rows[GROUP:])


@pytest.mark.parametrize("make", [folder, arrays, table])
def test_a_run_stores_no_record_of_a_file_that_changed(tmp_path: Path, make: Callable[[Path, int], str]) -> None:
    class Changing(EvaluationListener):
        def job(self, job: Job, number: int, count: int) -> RecordListener:
            def watch(records: Sequence[SampleRecord], total: int) -> None:
                if records:
                    make(tmp_path, 20)

            return watch

    text, runs = make(tmp_path, 10), tmp_path / "runs"
    with pytest.raises(VitattackError, match="has changed since it was opened"):
        evaluate(
            "tiny-vit", "fgsm", data=text, data_dir=tmp_path, batch_size=GROUP, threads=1, out=runs, listener=Changing()
        )
    assert [path.read_bytes().count(b'{"index":') for path in runs.glob("*/samples.jsonl")] == [GROUP]


def test_an_image_inside_a_tar_is_the_one_that_was_hashed(tmp_path: Path) -> None:
    from vitattack.data.formats.layouts import synset_folders

    sketches(tmp_path, 10)
    source = synset_folders(tmp_path / "imagenet-a.tar", "none", None, number_within=False)
    data = DataSet("tar", source, tuple(range(9)))
    data.digest()
    sketches(tmp_path, 20)
    with pytest.raises(VitattackError, match="has changed since it was opened"):
        data.read([5])


CUT = """
import os, sys
import numpy as np
from vitattack.core.errors import VitattackError
from vitattack.data import load_data

path = sys.argv[1]
np.savez(path, image=np.ones((2000, 32, 32, 3), np.uint8), label=np.zeros(2000, np.int64))
data = load_data(f"npz:{path}")
os.truncate(path, 100_000)
try:
    data.read([1999])
except VitattackError as error:
    print(error)
"""


def test_a_file_cut_short_is_an_error_and_no_bus_error(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CUT, str(tmp_path / "x.npz")], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert "has changed since it was opened" in done.stdout and not done.stderr
