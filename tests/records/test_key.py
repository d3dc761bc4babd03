"""Keys hold what texts stood for: settings of attacks, and a number for the meaning of records."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import vitattack.evaluation.evaluate as evaluation
from tests.conftest import tiny_vit
from vitattack.attacks import attack_text
from vitattack.attacks.base import Attack, Crafted
from vitattack.attacks.catalogue import ATTACKS
from vitattack.evaluation.evaluate import evaluate
from vitattack.records.sealed import opened_line, sealed_line, sealed_text
from vitattack.records.stored_result import read_result

Images = tuple[Tensor, Tensor]
SETTINGS: dict[str, Any] = {"threat": "linf:0.002", "batch_size": 4, "threads": 1}


def test_another_default_in_the_code_is_another_key(
    tmp_path: Path, toy_images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a release with other defaults would find the store of this one."""
    old = evaluate(tiny_vit(), "pgd(steps=1)", data=toy_images, out=tmp_path, **SETTINGS).results[0]
    planned = evaluation.plan_jobs

    def released(*given: Any, **more: Any) -> list[Any]:
        return [plan._replace(attack=replace(plan.attack, stop="never")) for plan in planned(*given, **more)]

    monkeypatch.setattr(evaluation, "plan_jobs", released)
    new = evaluate(tiny_vit(), "pgd(steps=1)", data=toy_images, out=tmp_path, **SETTINGS).results[0]
    assert new.job.attack == old.job.attack and new.job.key != old.job.key
    assert "stop='first_success'" in old.job.settings and "stop='never'" in new.job.settings


def test_another_meaning_of_records_is_another_key() -> None:
    from vitattack.records.job import RECORDS, Job

    job = Job("m", "pgd", "linf:8/255", "d", "w", "p")
    assert job.records == RECORDS and replace(job, records=RECORDS + 1).key != job.key


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_settings_hold_every_field_and_are_the_same_in_every_process(name: str) -> None:
    from vitattack.attacks.settings import resolved_settings

    text = ATTACKS[name].quick or name
    one, two = (resolved_settings(attack_text.example_attack(text).attack) for _ in range(2))
    assert one == two and " at 0x" not in one
    assert "eps=" in one or "shift=" in one


def test_settings_of_foreign_values_go_by_content() -> None:
    from vitattack.attacks.settings import resolved_settings

    @dataclass(frozen=True)
    class Foreign(Attack):
        steps: int = 3
        hidden: Any = field(default=None, repr=False)

        def __call__(self, victim: Any, x: Tensor, y: Tensor, *, rng: Any) -> Crafted:
            raise NotImplementedError

    values: list[Any] = [None, [1, 2], (1, 3), {"a": 1}, torch.ones(2), torch.zeros(2), lambda v: v, lambda v: -v]
    texts = [resolved_settings(Foreign(hidden=value)) for value in values]
    assert len(set(texts)) == len(values)
    assert resolved_settings(Foreign(hidden=torch.ones(2))) == texts[4]
    assert all("steps=3" in text for text in texts)


def test_another_torch_is_said_in_the_result(tmp_path: Path, toy_images: Images) -> None:
    first = evaluate(tiny_vit(), "fgsm", data=toy_images, out=tmp_path, **SETTINGS)
    (path,) = tmp_path.glob("*/result.json")
    content = json.loads(path.read_text())
    content["provenance"]["versions"]["timm"] = "0.1.2"
    path.write_text(sealed_text(content))
    again = evaluate(tiny_vit(), "fgsm", data=toy_images, out=tmp_path, **SETTINGS)
    assert again.worst_case == first.worst_case
    assert any("stored with timm 0.1.2, and this is timm" in doubt for doubt in again.doubts)
    read = read_result(tmp_path, path.parent.name)
    assert read is not None and read.doubts == again.doubts


def test_a_run_resumed_with_another_torch_says_so(tmp_path: Path, toy_images: Images) -> None:
    evaluate(tiny_vit(), "fgsm", data=toy_images, out=tmp_path, **SETTINGS)
    (folder,) = tmp_path.iterdir()
    (folder / "result.json").unlink()
    records = folder / "samples.jsonl"
    records.write_bytes(b"".join(records.read_bytes().splitlines(keepends=True)[:4]))
    events = folder / "events.jsonl"
    first, *others = events.read_bytes().splitlines(keepends=True)
    changed = {"versions": {**opened_line(first)["versions"], "torch": "1.2.3"}}
    events.write_bytes(b"".join([sealed_line(changed), *others]))
    again = evaluate(tiny_vit(), "fgsm", data=toy_images, out=tmp_path, **SETTINGS)
    assert any("computed with torch 1.2.3" in doubt for doubt in again.doubts)
