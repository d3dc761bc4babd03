"""Results as a data frame: one row per sample and attack."""

from __future__ import annotations

from pathlib import Path

import pandas
from torch import Tensor, nn

import vitattack
from vitattack.records.record import SampleRecord
from vitattack.records.result import COLUMNS, TEXTS, Evaluation, _columns
from vitattack.records.stored_result import read_result

Images = tuple[Tensor, Tensor]


def test_a_row_per_sample_and_attack(toy: nn.Module, toy_images: Images, tmp_path: Path) -> None:
    evaluation = vitattack.evaluate(
        toy,
        ["worst(random, pgd(steps=2))", "fgsm"],
        threat="linf:1/255,2/255",
        data=toy_images,
        out=tmp_path,
        threads=1,
    )
    frame = evaluation.frame()
    assert len(frame) == 4 * evaluation.n and list(frame.columns[: len(TEXTS + COLUMNS)]) == [*TEXTS, *COLUMNS]
    assert {"model", "index", "label", "clean", "adversarial", "status", "size", "stage", "margin"} <= set(
        frame.columns
    )
    robust = frame.assign(robust=frame["status"] == "robust").groupby(["threat", "index"])["robust"].all()
    for threat in evaluation.threats:
        assert int(robust[threat].sum()) == evaluation.under(threat).worst_case.correct
    staged = frame[frame["attack"] == "fgsm"]
    assert staged["stage"].isna().all()

    folders = [result.folder for result in evaluation.results]
    stored = [read_result(tmp_path, folder.name) for folder in folders if folder is not None]
    again = Evaluation(tuple(result for result in stored if result is not None))
    pandas.testing.assert_frame_equal(again.frame(), frame)
    assert again.json() == evaluation.json()


def test_names_that_clash_and_runs_without_samples() -> None:
    record = SampleRecord(3, 1, 1, 2, "fooled", 0.1, False, False, 0, 5, 2, {"label": 7, "stage": 1})
    columns = _columns(record)
    assert columns["label"] == 1 and columns["evidence label"] == 7 and columns["stage"] == 1
    assert list(Evaluation(()).frame().columns) == [*TEXTS, *COLUMNS]
