"""Saved examples: what is kept, that it changes no record, and that no stop between file and batch loses or doubles any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from tests.conftest import tiny_vit
from tests.evaluation.test_second_pass import QUICK, Masked, images
from tests.evaluation.test_second_pass import short_autoattack as short_autoattack
from vitattack.core.errors import UsageError, VitattackError
from vitattack.evaluation.evaluate import evaluate
from vitattack.records.result import Result
from vitattack.records.saved_examples import SavedExamples, folder_of, has_all_examples
from vitattack.records.store import Sink

Images = tuple[Tensor, Tensor]
SETTINGS: dict[str, Any] = {"threat": "linf:0.002", "batch_size": 4, "threads": 1}
ATTACK = "pgd(steps=3)"


def run(out: Path, data: Images, **more: Any) -> Result:
    return evaluate(tiny_vit().model, ATTACK, data=data, out=out, **{**SETTINGS, **more}).results[0]


def contents(result: Result) -> dict[str, bytes]:
    """Everything in the folder of a run but times and examples."""
    assert result.folder
    return {path.name: path.read_bytes() for path in result.folder.glob("*.json*") if path.name != "events.jsonl"}


def saved(result: Result) -> SavedExamples:
    assert result.folder
    return SavedExamples(result.folder)


def assert_fits(result: Result, data: Images) -> None:
    """The saved examples are those of the records: model, budget and images agree."""
    x, y = data
    columns = saved(result).columns()
    assert (
        columns.index.tolist() == [record.index for record in result.records] and columns.label.tolist() == y.tolist()
    )
    assert np.array_equal(columns.x, x.numpy()) and columns.x_adv.dtype == np.float32
    with torch.no_grad():
        assert tiny_vit()(torch.from_numpy(columns.x_adv)).argmax(1).tolist() == columns.prediction.tolist()
    sizes = np.abs(columns.x_adv - columns.x).reshape(len(x), -1).max(1)
    for record, prediction, size in zip(result.records, columns.prediction, sizes, strict=True):
        assert record.clean if record.status == "clean_wrong" else record.adversarial == prediction
        assert record.size == pytest.approx(size, abs=1e-7)


@pytest.fixture
def partly_wrong(toy_images: Images) -> Images:
    x, y = toy_images
    y = y.clone()
    y[:3] = (y[:3] + 1) % 10
    return x, y


def test_examples_are_those_of_the_records_and_change_neither_key_nor_records(
    tmp_path: Path, partly_wrong: Images
) -> None:
    plain, kept = run(tmp_path / "plain", partly_wrong), run(tmp_path / "kept", partly_wrong, save_adv=True)
    assert plain.job == kept.job and contents(plain)["samples.jsonl"] == contents(kept)["samples.jsonl"]
    assert len(saved(plain)) == 0 and {record.status for record in kept.records} == {"clean_wrong", "fooled", "robust"}
    assert_fits(kept, partly_wrong)
    one = saved(kept)[7]
    assert one.index == 7 and one.x.shape == (3, 32, 32) and one.label == int(partly_wrong[1][7])
    assert saved(kept).damage() == []


def test_images_of_bytes_are_stored_as_bytes_and_come_back_the_same(tmp_path: Path, toy_images: Images) -> None:
    x = (toy_images[0] * 255).round() / 255
    result = run(tmp_path, (x, toy_images[1]), save_adv=True)
    assert np.array_equal(saved(result).columns().x, x.numpy())
    exact = run(tmp_path, toy_images, save_adv=True)
    assert result.folder and exact.folder
    sizes = [sum(p.stat().st_size for p in folder_of(each).iterdir()) for each in (result.folder, exact.folder)]
    assert sizes[0] < 0.65 * sizes[1]


@pytest.mark.parametrize("place", ["before the records", "before the examples"])
def test_a_kill_between_batch_and_file_loses_and_doubles_nothing(
    tmp_path: Path, toy_images: Images, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    whole = run(tmp_path / "whole", toy_images, save_adv=True)
    target = "vitattack.evaluation.example_keeper.write_examples" if place == "before the examples" else None
    writes: list[int] = []

    def die(*_: Any, **__: Any) -> None:
        writes.append(1)
        if len(writes) == 2:
            raise KeyboardInterrupt
        before(*_, **__)

    with monkeypatch.context() as patch:
        if target:
            from vitattack.records.saved_examples import write_examples as before

            patch.setattr(target, die)
        else:
            before = Sink.write
            patch.setattr(Sink, "write", die)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "cut", toy_images, save_adv=True)
    [folder] = (tmp_path / "cut").iterdir()
    assert len(SavedExamples(folder)) == 4  # of the one whole batch, whichever files are there
    result = run(tmp_path / "cut", toy_images, save_adv=True)
    assert contents(result)["samples.jsonl"] == contents(whole)["samples.jsonl"]
    assert whole.folder and result.folder
    files = [{p.name: p.read_bytes() for p in folder_of(each).iterdir()} for each in (whole.folder, result.folder)]
    assert files[0] == files[1] and len(files[0]) == 3


def test_a_finished_run_gets_its_examples_later_and_keeps_its_result(tmp_path: Path, toy_images: Images) -> None:
    before = contents(run(tmp_path, toy_images))
    result = run(tmp_path, toy_images, save_adv=True)
    assert contents(result) == before
    assert_fits(result, toy_images)
    assert result.folder
    victim = folder_of(result.folder) / "pass1-batch000001.safetensors"
    victim.write_bytes(victim.read_bytes()[:-7])
    assert len(saved(result)) == 8 and not has_all_examples(result.folder)
    assert len(saved(run(tmp_path, toy_images, save_adv=True))) == 12


def test_what_is_not_crafted_again_as_it_is_stored_is_not_kept(
    tmp_path: Path, toy_images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path, toy_images)
    monkeypatch.setattr("vitattack.evaluation.example_keeper.tuple", lambda _: (), raising=False)
    with pytest.warns(UserWarning, match="3 of 3 batches of .* were not crafted again as they are stored"):
        result = run(tmp_path, toy_images, save_adv=True)
    assert len(saved(result)) == 0


def test_fresh_forgets_examples_and_shards_keep_theirs(tmp_path: Path, toy_images: Images) -> None:
    result = run(tmp_path, toy_images, save_adv=True, save_png=True)
    assert result.folder and len([*folder_of(result.folder).glob("png/*.png")]) == 12
    assert not folder_of(run(tmp_path, toy_images, fresh=True).folder or tmp_path).exists()
    for number in range(2):
        shards = evaluate(
            tiny_vit().model, ATTACK, data=toy_images, out=tmp_path / "s", shard=(number, 2), save_adv=True, **SETTINGS
        )
    assert_fits(shards.results[0], toy_images)


def test_images_are_rounded_candidates(tmp_path: Path, toy_images: Images) -> None:
    result = run(tmp_path, toy_images, save_png=True)
    example, folder = saved(result)[3], folder_of(result.folder or tmp_path) / "png"
    path = folder / f"000003-label{example.label}-as{example.prediction}.png"
    pixels = np.asarray(Image.open(path)).transpose(2, 0, 1) / 255
    assert np.abs(pixels - example.x_adv).max() <= 0.5 / 255 + 1e-6


def test_a_later_pass_keeps_what_it_broke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitattack.attacks.auto.block.TRUSTED", -1.0)  # so that the probe finds out, in a later pass
    settings: dict[str, Any] = {"threat": "linf:0.1", "threads": 1, "batch_size": 16, "data": images(24)}
    first = evaluate(Masked(), QUICK, out=tmp_path / "a", save_adv=True, **settings).results[0]
    assert max(record.pass_number for record in first.records) > 1
    for result in (first, *_completed(tmp_path / "b", settings)):
        assert contents(result)["samples.jsonl"] == contents(first)["samples.jsonl"]
        columns = saved(result).columns(range(24))
        with torch.no_grad():
            said = Masked()(torch.from_numpy(columns.x_adv)).argmax(1)
        assert said.tolist() == [record.adversarial for record in sorted(result.records, key=lambda r: r.index)]


def _completed(out: Path, settings: dict[str, Any]) -> list[Result]:
    evaluate(Masked(), QUICK, out=out, **settings)
    return [evaluate(Masked(), QUICK, out=out, save_adv=True, **settings).results[0]]


def test_without_a_store_and_with_damaged_files_there_is_one_line(tmp_path: Path, toy_images: Images) -> None:
    with pytest.raises(UsageError, match="give out, the folder of runs"):
        evaluate(tiny_vit().model, ATTACK, data=toy_images, save_adv=True, **SETTINGS)
    result = run(tmp_path, toy_images, save_adv=True)
    assert result.folder
    examples = saved(result)
    victim = folder_of(result.folder) / "pass1-batch000000.safetensors"
    content = bytearray(victim.read_bytes())
    content[-1] ^= 1
    victim.write_bytes(content)
    assert examples.damage() == [victim.name]
    victim.unlink()
    with pytest.raises(VitattackError, match="pass1-batch000000.safetensors is damaged: run the same command"):
        examples[0]
