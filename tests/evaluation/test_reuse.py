"""Stored records are reused for the function that made them, and for no other."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import tiny_vit
from vitattack.core.errors import UsageError
from vitattack.evaluation.evaluate import evaluate
from vitattack.evaluation.transfer.study import transfer

Images = tuple[Tensor, Tensor]
SETTINGS: dict[str, Any] = {"threat": "linf:0.002", "batch_size": 4, "threads": 1}


class Shifted(nn.Module):
    """A model with its preprocessing in a list."""

    def __init__(self, mean: list[float]) -> None:
        super().__init__()
        self.inner, self.mean = tiny_vit().model, mean

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner(x - torch.tensor(self.mean).view(1, -1, 1, 1))
        return logits


class FromFile(nn.Module):
    """A model that reads a setting when it is called, where no digest can see it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.inner, self.path = tiny_vit().model, path

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner(x.roll(int(self.path.read_text()), -1))
        return logits


class Locked(nn.Module):
    """A model with something in it that has no digest."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.lock = tiny_vit().model, threading.Lock()

    def forward(self, x: Tensor) -> Tensor:
        with self.lock:
            logits: Tensor = self.inner(x)
        return logits


def test_a_corrected_list_is_another_job(tmp_path: Path, toy_images: Images) -> None:
    wrong = evaluate(Shifted([0.5, 0.2, 0.9]), "fgsm", data=toy_images, out=tmp_path, **SETTINGS)
    right = evaluate(Shifted([0.0, 0.0, 0.0]), "fgsm", data=toy_images, out=tmp_path, **SETTINGS)
    alone = evaluate(Shifted([0.0, 0.0, 0.0]), "fgsm", data=toy_images, **SETTINGS)
    assert right.clean == alone.clean and right.worst_case == alone.worst_case
    assert wrong.clean.correct < 12 == right.clean.correct


def test_a_model_without_a_digest_is_never_looked_up(tmp_path: Path, toy_images: Images) -> None:
    class Counted(Locked):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(len(x))
            return super().forward(x)

    seen: list[int] = []
    runs = [evaluate(Counted(), "fgsm", data=toy_images, out=tmp_path, **SETTINGS) for _ in range(2)]
    assert sum(seen) > 2 * (3 * 12)
    for run in runs:
        assert any("lock" in doubt and "never reused" in doubt for doubt in run.doubts)
    study = transfer([Locked()], [tiny_vit()], "fgsm", threat="linf:0.002", data=toy_images, out=tmp_path, threads=1)
    assert "never reused" in " ".join(next(iter(study.white_box.values())).doubts)


@pytest.mark.parametrize("finished", [True, False])
def test_stored_records_of_another_function_are_refused(tmp_path: Path, toy_images: Images, finished: bool) -> None:
    shift = tmp_path / "shift"
    shift.write_text("0")
    out = tmp_path / "runs"

    def run(**more: Any) -> Any:
        return evaluate(FromFile(shift), "fgsm", data=toy_images, out=out, **SETTINGS, **more)

    first = run()
    assert run().json() == first.json()  # the same function is found
    if not finished:
        for path in out.glob("*/result.json"):
            path.unlink()
        (records,) = out.glob("*/samples.jsonl")
        records.write_bytes(b"".join(records.read_bytes().splitlines(keepends=True)[:4]))
    shift.write_text("9")
    with pytest.raises(UsageError, match="another function than 'FromFile' is now.*run with --fresh"):
        run()
    assert run(fresh=True).clean.correct < 12
    assert run().clean.correct < 12


def test_stored_cells_of_a_transfer_study_are_refused_alike(tmp_path: Path, toy_images: Images) -> None:
    shift = tmp_path / "shift"
    shift.write_text("0")
    fields: dict[str, Any] = {"threat": "linf:0.002", "data": toy_images, "out": tmp_path / "runs", "threads": 1}
    transfer([tiny_vit()], [FromFile(shift)], "fgsm", **fields)
    transfer([tiny_vit()], [FromFile(shift)], "fgsm", **fields)
    shift.write_text("9")
    with pytest.raises(UsageError, match="another function than 'FromFile' is now"):
        transfer([tiny_vit()], [FromFile(shift)], "fgsm", **fields)


def test_a_random_model_is_found_again(tmp_path: Path, toy_images: Images) -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = tiny_vit().model

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.inner(x + 0.1 * torch.randn_like(x))
            return logits

    first = evaluate(Noisy(), "fgsm", data=toy_images, out=tmp_path, **SETTINGS)
    assert evaluate(Noisy(), "fgsm", data=toy_images, out=tmp_path, **SETTINGS).json() == first.json()
