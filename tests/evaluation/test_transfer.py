"""Transfer studies: the matrices, their diagonal, and resuming after a crash."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import tiny_vit, toy_pictures
from vitattack.attacks import attack_text
from vitattack.attacks.attack_text import build
from vitattack.attacks.gradient.loop import Gradient
from vitattack.attacks.gradient.starts import Clean
from vitattack.attacks.gradient.steps import Momentum
from vitattack.attacks.losses.plain import CrossEntropy
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.evaluation.evaluate import evaluate
from vitattack.evaluation.listener import EvaluationListener
from vitattack.evaluation.transfer.command_words import split_attack
from vitattack.evaluation.transfer.protocols import settled
from vitattack.evaluation.transfer.study import transfer
from vitattack.evaluation.transfer.success_matrix import TransferCell, TransferMatrix
from vitattack.models.victim import Victim
from vitattack.models.zoo.file_options import FileOptions
from vitattack.records.job import Job
from vitattack.records.record import RecordListener, SampleRecord, Status
from vitattack.records.result import Result
from vitattack.report.transfer import numbers, tables
from vitattack.threats.base import parse_threat
from vitattack.threats.lp import LpBall

Images = tuple[Tensor, Tensor]
PGD = "pgd(steps=3, stop=never)"
BALL = "linf:0.006"
SETTINGS: dict[str, Any] = {"threat": BALL, "batch_size": 5, "threads": 1}


def toy(name: str, seed: int) -> Victim:
    victim = tiny_vit(seed)
    victim.name = name
    return victim


@pytest.fixture(scope="module")
def pair() -> tuple[Victim, Victim]:
    return toy("one", 0), toy("two", 1)


@pytest.fixture
def images(pair: tuple[Victim, Victim]) -> Images:
    """Labels of which each model classifies some correctly that the other may not."""
    x = toy_pictures()
    with torch.no_grad():
        one, two = (victim(x).argmax(1) for victim in pair)
    y = torch.where(torch.arange(12) % 3 == 0, two, one)
    y[11] = (one[11] + 1) % 10
    return x, y


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.glob("*/samples.jsonl")}


@pytest.mark.parametrize("attack", [PGD, "pgd(steps=3)", "worst(fgsm, gama(steps=4))"])
def test_the_diagonal_is_the_white_box_run(
    tmp_path: Path, pair: tuple[Victim, Victim], images: Images, attack: str
) -> None:
    matrix = transfer(pair, attack=attack, data=images, out=tmp_path, **SETTINGS)
    for victim in pair:
        alone = evaluate(victim, attack, data=images, **SETTINGS).results[0]
        cell = matrix.cell(victim.name, victim.name)
        assert cell.accuracy == alone.robust and matrix.clean[victim.name] == alone.clean
        assert list(cell.result.records) == list(alone.records)
        assert cell.result.job.key == alone.job.key  # `eval` finds it in the store, and the other way round
        assert 0 < alone.clean.correct < 12 and alone.robust.correct < alone.clean.correct


def test_off_the_diagonal_everybody_is_attacked_on_the_source(pair: tuple[Victim, Victim], images: Images) -> None:
    (one, two), (x, y) = pair, images
    matrix = transfer([one], [two], PGD, data=images, **SETTINGS)
    assert matrix.sources == ("one",) and matrix.targets == ("two",) and list(matrix.white_box) == ["one"]
    cell = matrix.cell("one", "two")
    attack = attack_text.build(PGD, parse_threat(BALL))
    with torch.no_grad():
        right, kept = one(x).argmax(1) == y, two(x).argmax(1) == y
    x_adv = attack(one, x, y, rng=SampleRng(0, tuple(range(12)))).x_adv
    with torch.no_grad():
        still = kept & (two(x_adv).argmax(1) == y)
    assert not right.all() and (right & kept).any() and (kept & ~right).any()
    assert cell.accuracy.correct == int(still.sum())
    assert cell.drop.correct == int((kept & ~still).sum()) > 0
    assert cell.success[3:] == (int((right & kept & ~still).sum()), int((right & kept).sum()))
    for record, was_right in zip(cell.result.records, right.tolist(), strict=True):
        assert record.evidence["source_right"] == was_right
        assert record.evidence["source_backwards"] == 3
        assert record.backwards == 0 and record.forwards <= 3
        assert record.status == "clean_wrong" or record.size > 0


class Pulled(Exception):
    pass


class Plug(EvaluationListener):
    """Interrupts the run after some batches."""

    def __init__(self, batches: int) -> None:
        self.left = batches

    def job(self, job: Job, number: int, count: int) -> RecordListener:
        def watch(records: Sequence[SampleRecord], total: int) -> None:
            self.left -= bool(records)
            if self.left == 0:
                raise Pulled

        return watch


@pytest.mark.parametrize("batches", [1, 4])
def test_an_interrupted_study_goes_on_to_the_same_bytes(
    tmp_path: Path, pair: tuple[Victim, Victim], images: Images, batches: int
) -> None:
    settings = {"attack": PGD, "data": images, **SETTINGS}
    whole = transfer(pair, out=tmp_path / "whole", **settings)
    with pytest.raises(Pulled):
        transfer(pair, out=tmp_path / "torn", listener=Plug(batches), **settings)
    assert files(tmp_path / "torn") != files(tmp_path / "whole")
    for number, path in enumerate(sorted((tmp_path / "torn").glob("*/samples.jsonl"))):
        if number % 2:  # a crash between two cells: one of them lacks the end of a batch
            path.write_bytes(path.read_bytes()[:-50])
    # only after all four batches is there a finished cell to miss its end
    told = pytest.warns(UserWarning, match="lacks the end that it had") if batches == 4 else nullcontext()
    with told:
        again = transfer(pair, out=tmp_path / "torn", **settings)
    assert files(tmp_path / "torn") == files(tmp_path / "whole") and len(files(tmp_path / "whole")) == 4
    assert [c.accuracy for c in again.cells] == [c.accuracy for c in whole.cells]
    assert again.doubts == whole.doubts


def test_a_finished_study_comes_from_the_store_and_a_new_target_joins_it(
    tmp_path: Path, pair: tuple[Victim, Victim], images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = pair
    settings = {"attack": PGD, "data": images, "out": tmp_path, **SETTINGS}
    first = transfer([one], [one], **settings)
    joined = transfer([one], [one, two], **settings)
    alone = transfer([one], [two], **{**settings, "out": None})
    assert joined.cell("one", "one").accuracy == first.cell("one", "one").accuracy
    assert list(joined.cell("one", "two").result.records) == list(alone.cell("one", "two").result.records)
    before = json.dumps(joined.json())

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a finished study was run again")

    monkeypatch.setattr("vitattack.evaluation.transfer.source_run.craft", never)
    assert json.dumps(transfer([one], [one, two], **settings).json()) == before
    with pytest.raises(AssertionError, match="run again"):
        transfer([one], [one, two], fresh=True, **settings)


class Pooled(nn.Module):
    """The toy behind an upsampling: a victim of 16 px images."""

    def __init__(self, victim: Victim) -> None:
        super().__init__()
        self.victim = victim

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.victim(nn.functional.interpolate(x, size=32, mode="bilinear"))
        return logits


def test_other_input_sizes_are_resized_and_marked(pair: tuple[Victim, Victim], images: Images) -> None:
    one, _ = pair
    half = Victim(Pooled(one), name="half", num_classes=10, input_size=16)
    matrix = transfer([one, half], attack=PGD, data=images, **{**SETTINGS, "threat": "linf:0.03"})
    marked = {(cell.source, cell.target): cell.resized for cell in matrix.cells}
    assert marked == {("one", "one"): False, ("one", "half"): True, ("half", "one"): True, ("half", "half"): False}
    for cell in matrix.cells:
        assert cell.drop.correct > 0 and cell.result.violations == 0
        assert all(record.size <= 0.03 * (1 + 1e-5) + 1e-7 for record in cell.result.records)
    assert "images are resized to 16 px for half" in matrix.doubts
    accuracy, _, success = tables(matrix)
    assert accuracy.rows[1][1].endswith("%") and accuracy.rows[1][2].endswith("*") and success.rows[1][1].endswith("*")
    assert any("resized" in note for note in accuracy.notes)
    assert [row["resized"] for row in matrix.json()["cells"]] == [False, True, True, False]


def record(index: int, status: Status, *, right: bool, fragile: bool = False) -> SampleRecord:
    clean = 1 if status == "clean_wrong" else 0
    return SampleRecord(index, 0, clean, -1, status, 0.0, fragile, False, -1, 1, 0, {"source_right": right})


def matrix_of(records: Sequence[SampleRecord], own: Sequence[SampleRecord]) -> TransferMatrix:
    job = Job("t", "pgd", "linf:1/255", "d", "w", "p")
    cell = TransferCell("s", "t", Result(job, records, 0.0, (), {}))
    white = {"s": Result(job, own, 0.0, (), {}), "t": Result(job, own, 0.0, (), {})}
    return TransferMatrix(("s", "t"), ("t",), (cell, TransferCell("t", "t", white["t"])), white, "d")


def test_the_three_measures_by_hand() -> None:
    rows = [
        record(0, "robust", right=True),
        record(1, "robust", right=True, fragile=True),
        record(2, "fooled", right=True),
        record(3, "fooled", right=False),
        record(4, "invalid", right=True),
        record(5, "robust", right=False),
        record(6, "clean_wrong", right=True),
        record(7, "clean_wrong", right=False),
    ]
    cell = matrix_of(rows, rows).cell("s", "t")
    assert (cell.accuracy.correct, cell.accuracy.n) == (3, 8)
    assert (cell.drop.correct, cell.drop.n) == (3, 8)  # two fooled, one invalid
    assert cell.drop.accuracy == pytest.approx(cell.result.clean.accuracy - cell.accuracy.accuracy)
    assert (cell.success.correct, cell.success.n) == (1, 4)  # 0, 1, 2 and 4 are right on both
    from vitattack.records.stats import wilson

    assert (cell.success.low, cell.success.high) == (wilson(1, 4)[0], wilson(3, 4)[1])
    assert (cell.drop.low, cell.drop.high) == (wilson(2, 8)[0], wilson(4, 8)[1])


def test_no_jointly_correct_image_is_no_success_rate() -> None:
    rows = [record(0, "clean_wrong", right=True), record(1, "robust", right=False)]
    matrix = matrix_of(rows, rows)
    assert matrix.cell("s", "t").json()["success"]["success"] is None
    assert tables(matrix)[2].rows[0][1] == "- of 0"
    table = numbers(matrix)
    first = dict(zip(table.columns, table.rows[0], strict=True))
    assert (first["n_joint"], first["success"], first["drop"]) == ("0", "", "0")


def test_a_target_that_others_fool_better_than_itself_is_doubted() -> None:
    hidden = [record(i, "robust", right=True) for i in range(12)]
    found = [record(i, "fooled" if i < 9 else "robust", right=True) for i in range(12)]
    assert any("candidates of s fool t more than its own do" in doubt for doubt in matrix_of(found, hidden).doubts)
    assert matrix_of(hidden, found).doubts == ()


def test_json_has_the_documented_shape_and_the_csv_its_numbers(pair: tuple[Victim, Victim], images: Images) -> None:
    matrix = transfer(pair, attack="pgd(steps=3)", data=images, **SETTINGS)
    content = json.loads(json.dumps(matrix.json()))
    assert list(content) == [
        "schema", "sources", "targets", "attack", "threat", "data", "n", "seed", "clean", "white_box", "cells",
        "doubts", "run", "provenance",
    ]  # fmt: skip
    assert content["schema"] == 1 and content["n"] == 12 and content["run"] is None
    assert set(content["clean"]["one"]) == {"accuracy", "low", "high", "correct"}
    for cell in content["cells"]:
        assert set(cell) >= {"source", "target", "accuracy", "drop", "success", "n_joint", "resized"}
        assert cell["accuracy"]["low"] <= cell["accuracy"]["accuracy"] <= cell["accuracy"]["high"]
        assert cell["drop_low"] <= cell["drop"] <= cell["drop_high"]
        assert cell["success"]["low"] <= cell["success"]["success"] <= cell["success"]["high"]
        clean = content["clean"][cell["target"]]["accuracy"]
        assert cell["drop"] == pytest.approx(clean - cell["accuracy"]["accuracy"])
    assert set(content["provenance"]["weights_sha256"]) == {"one", "two"}
    assert any("source first errs" in doubt for doubt in content["doubts"])
    table = numbers(matrix)
    first = dict(zip(table.columns, table.rows[0], strict=True))
    assert float(first["drop_high"]) == pytest.approx(content["cells"][0]["drop_high"], abs=1e-5)


def test_an_attack_that_learns_does_so_on_the_source_and_is_recalled(
    tmp_path: Path, pair: tuple[Victim, Victim], images: Images
) -> None:
    text = "scale_search(pgd(steps=2), grid=(1, 0.5), calibration=4)"
    other = (toy_pictures(8, seed=5), torch.arange(8))
    settings = {"attack": text, "data": images, "calibration": other, **SETTINGS}
    whole = transfer(pair, out=tmp_path / "whole", **settings)
    alone = evaluate(pair[1], text, data=images, calibration=other, **SETTINGS).results[0]
    assert list(whole.cell("two", "two").result.records) == list(alone.records)
    with pytest.raises(Pulled):
        transfer(pair, out=tmp_path / "torn", listener=Plug(2), **settings)
    transfer(pair, out=tmp_path / "torn", **settings)
    assert files(tmp_path / "torn") == files(tmp_path / "whole")


def test_memory_that_ends_halves_the_pieces_and_changes_no_verdict(
    pair: tuple[Victim, Victim], images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = transfer(pair, attack=PGD, data=images, **SETTINGS)
    forward = Victim.forward

    def tight(self: Victim, x: Tensor) -> Tensor:
        if len(x) > 3:
            raise RuntimeError("CUDA out of memory")
        return forward(self, x)

    monkeypatch.setattr(Victim, "forward", tight)
    monkeypatch.setattr("vitattack.evaluation.transfer.source_run.model_doubts", lambda victim, x: [])
    halved = transfer(pair, attack=PGD, data=images, **SETTINGS)
    assert [c.accuracy for c in halved.cells] == [c.accuracy for c in plain.cells]
    assert any("batches were halved" in doubt for doubt in halved.doubts)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"models": []}, "no source is named"),
        ({"models": ["tiny-vit", "tiny-vit"]}, "'tiny-vit' is named twice"),
        ({"to": ["tiny-vitt"]}, "unknown model 'tiny-vitt'"),
        ({"threat": "linf:1/255,2/255"}, "one budget at a time"),
        ({"threat": "spatial"}, "not spatial ones: use --threat"),
        ({"attack": 'transfer("tiny-vit", pgd)'}, "names its source itself"),
        ({"attack": "pgdd"}, "unknown attack 'pgdd'"),
        ({"calibration": "cifar10-calib"}, "for attacks that learn"),
        ({"options": FileOptions(arch="small:tiny_vit_32")}, "none is named: drop them"),
        ({"transform": "resize32x32"}, "a transform is for folder: data"),
        ({"batch_size": 0}, "batch size 0"),
        ({"to": [Victim(nn.Flatten(), name="seven", num_classes=7, input_size=32)]}, "'seven' has 7"),
        ({"to": [Victim(nn.Flatten(), name="tiny-vit", num_classes=10, input_size=32)]}, "two models are called"),
        ({"data": (torch.rand(4, 1, 32, 32), torch.zeros(4).long())}, "have 1 channels"),
        ({"data": (torch.rand(4, 3, 32, 32), torch.full((4,), 12))}, "label 12"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(change: dict[str, Any], message: str) -> None:
    settings = {"models": ["tiny-vit"], "attack": "fgsm", "limit": 4, "threads": 1, **change}
    with pytest.raises(UsageError, match=message) as refused:
        transfer(**settings)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((["a", "b"], [], None), (["a", "b"], [], None)),
        ((["a", "b", "pgd"], [], None), (["a", "b"], [], "pgd")),
        ((["a"], ["c", "d", "pgd"], None), (["a"], ["c", "d"], "pgd")),
        ((["a", "aas+pgd"], ["c"], None), (["a"], ["c"], "aas+pgd")),
        ((["a"], ["c", "pgdd(steps=3)"], None), (["a"], ["c"], "pgdd(steps=3)")),
        ((["a"], ["c"], "mim"), (["a"], ["c"], "mim")),
        ((["a"], ["weights (1).pt"], None), (["a"], ["weights (1).pt"], None)),
    ],
)
def test_the_attack_may_stand_last(words: tuple[list[str], list[str], str | None], expected: object) -> None:
    assert split_attack(*words) == expected


@pytest.mark.parametrize("words", [(["a", "pgd"], ["c"], "mim"), (["a", "pgd"], ["c", "mim"], None)])
def test_two_attacks_are_one_too_many(words: tuple[list[str], list[str], str | None]) -> None:
    with pytest.raises(UsageError, match="one attack is crafted at a time"):
        split_attack(*words)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((None, None, None), ("pgd(preset=bhojanapalli2021, stop=never)", "linf:8/255")),
        (("transferattack", None, None), ("mim(stop=never)", "linf:16/255")),
        (("transferattack", "di(mim(stop=never))", "linf:16/255"), ("di(mim(stop=never))", "linf:16/255")),
        ((None, "pgd", "l2:1"), ("pgd", "l2:1")),
    ],
)
def test_a_protocol_settles_what_is_not_given(given: tuple[str | None, ...], expected: tuple[str, str]) -> None:
    assert settled(*given) == expected  # type: ignore[arg-type]


def test_the_attack_of_transferattack_takes_ten_equal_steps_with_full_momentum() -> None:
    attack, threat = settled("transferattack", None, None)
    assert build(attack, parse_threat(threat)) == Gradient(
        LpBall("linf", 16 / 255), 10, Momentum(0.1, decay=1.0), CrossEntropy(), Clean(), "never"
    )


def test_a_module_named_twice_is_called_by_its_name() -> None:
    for model, name in ((toy("one", 0), "one"), (nn.Flatten(), "Flatten")):
        with pytest.raises(UsageError, match=f"'{name}' is named twice"):
            transfer([model, model], attack="fgsm", threads=1)


@pytest.mark.usefixtures("few_queries")
def test_auto_on_the_diagonal_has_its_later_passes_and_the_store_answers_afterwards(
    tmp_path: Path, pair: tuple[Victim, Victim], images: Images
) -> None:
    """Other cells are judged on candidates of the first pass."""
    settings = {**SETTINGS, "threat": "linf:0.001"}
    attack = "auto(steps=5, long=100)"
    matrix = transfer(pair, attack=attack, data=images, out=tmp_path, **settings)
    alone = evaluate(pair[0], attack, data=images, out=tmp_path / "alone", **settings).results[0]
    assert list(matrix.white_box["one"].records) == list(alone.records)
    assert {r.pass_number for r in alone.records} == {1, 2}
    assert any("crafting stops where the source first errs" in note for note in matrix.notes)
    before = files(tmp_path)
    heard: list[bool] = []

    class Ears(EvaluationListener):
        def done(self, result: Result | None, from_store: bool) -> None:
            heard.append(from_store)

    again = transfer(pair, attack=attack, data=images, out=tmp_path, listener=Ears(), **settings)
    assert heard == [True, True] and files(tmp_path) == before
    assert [c.accuracy for c in again.cells] == [c.accuracy for c in matrix.cells]


class Linear(nn.Module):
    """Ten classes from images of one size by a fixed random map."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(10, 3 * height * width, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: Tensor) -> Tensor:
        return (x - 0.5).flatten(1) @ self.weight.T


def test_models_of_oblong_and_of_square_images_are_studied_together() -> None:
    models = [
        Victim(Linear(*size), name=f"{size}", num_classes=10, input_size=size)
        for size in ((16, 24), (16, 16), (24, 16))
    ]
    x = torch.rand(8, 3, 16, 24, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        y = models[0](x).argmax(1)
    matrix = transfer(models, attack=PGD, data=(x, y), **{**SETTINGS, "threat": "linf:0.03"})
    (alone,) = evaluate(models[0], PGD, data=(x, y), **{**SETTINGS, "threat": "linf:0.03"}).results
    first = next(cell for cell in matrix.cells if cell.source == cell.target == "(16, 24)")
    assert first.result.records == alone.records and first.result.clean.correct == 8
    assert {cell.resized for cell in matrix.cells if cell.source != cell.target} == {True}
    assert all(record.size <= 0.03 * (1 + 1e-5) + 1e-7 for cell in matrix.cells for record in cell.result.records)
    assert any("16 px for (16, 16)" in doubt for doubt in matrix.doubts), matrix.doubts
    assert any("24 x 16 px for (24, 16)" in doubt for doubt in matrix.doubts)


def test_a_model_of_any_size_is_no_part_of_a_study() -> None:
    several = Victim(Linear(16, 16), name="several", num_classes=10, input_size=16, any_size=True)
    with pytest.raises(UsageError, match="'several' takes images of any size, .*: name the size of its images"):
        transfer([several, toy("one", 0)], attack=PGD, data="cifar10-demo[:4]")
