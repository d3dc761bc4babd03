"""Attachments of a result: its certificate, and the checks where they are asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import tiny_vit, toy_pictures
from vitattack import evaluate
from vitattack.checks import certificate_of_run
from vitattack.core.errors import UsageError
from vitattack.evaluation import attachments
from vitattack.models.victim import Victim
from vitattack.records.report_section import Section
from vitattack.records.result import Result

AUTO = "auto(k=1, steps=5, long=10)"
N = 16

pytestmark = pytest.mark.usefixtures("few_queries")


@pytest.fixture(autouse=True)
def ample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small runs pay for a certificate."""
    monkeypatch.setattr(certificate_of_run, "SHARE", 10.0)


def run(victim: nn.Module, **fields: Any) -> Result:
    x = toy_pictures(N)
    with torch.no_grad():
        data = x, victim(x).argmax(1)
    (result,) = evaluate(
        victim, fields.pop("attack", AUTO), threat="linf:4/255", data=data, threads=1, **fields
    ).results
    return result


def content(result: Result) -> Any:
    section = result.section("certificate")
    assert section is not None
    return section.content


def test_auto_finds_what_is_planted_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(tiny_vit(), out=tmp_path)
    said = content(found)
    assert said["images"] == N and said["tested"] >= N - 4
    assert [each["found"] for each in said["found"]] == [said["tested"]]
    section = found.section("certificate")
    assert section is not None and not section.doubts
    assert section.notes[0].startswith(
        f"certificate: {said['tested']} of {said['tested']} planted examples found, at least "
    )

    def never(occasion: attachments.Occasion) -> Section:
        raise AssertionError("a stored certificate is not made again")

    monkeypatch.setitem(attachments.ATTACHMENTS._entries, "certificate", never)
    again = run(tiny_vit(), out=tmp_path)
    assert (content(again), again.doubts, again.records) == (said, found.doubts, found.records)


def test_a_result_that_lacks_its_certificate_gets_one(tmp_path: Path) -> None:
    """As after a kill between the last record and the certificate."""
    without = run(tiny_vit(), out=tmp_path, certificate=False)
    assert without.section("certificate") is None and without.folder is not None
    before = (without.folder / "samples.jsonl").read_bytes()
    assert content(run(tiny_vit(), out=tmp_path))["tested"] > 0
    assert (without.folder / "samples.jsonl").read_bytes() == before
    assert "certificate" in json.loads((without.folder / "result.json").read_text())


class Masked(nn.Module):
    """A model whose gradient is that of the mirrored image."""

    def __init__(self, model: Victim) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.model(x.detach() + x.flip(3) - x.flip(3).detach())
        return out


def test_planted_examples_that_auto_does_not_find_are_a_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitattack.attacks.auto.attack.assurance", lambda ball, first: None)
    monkeypatch.setattr("vitattack.attacks.auto.block.TRUSTED", -1.0)
    found = run(Masked(tiny_vit()), out=tmp_path)
    said = content(found)
    assert said["found"][0]["found"] < 0.9 * said["tested"]
    (doubt,) = [each for each in found.doubts if "planted in this model" in each]
    assert "upper bound; next: vitattack.evaluate(model" in doubt
    stored = json.loads((found.folder / "result.json").read_text()) if found.folder else {}
    assert doubt in stored["doubts"]
    assert doubt in run(Masked(tiny_vit()), out=tmp_path).doubts


def test_a_certificate_that_fails_leaves_the_result_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*about: Any, **more: Any) -> None:
        raise RuntimeError("out of memory: 3 GB were asked for\nand not given")

    monkeypatch.setattr(certificate_of_run, "certify", fails)
    found = run(tiny_vit())
    assert found.n == N and content(found) == {"says_nothing": "out of memory: 3 GB were asked for"}


def test_few_passes_pay_for_no_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate_of_run, "SHARE", 0.12)
    found = run(tiny_vit())
    section = found.section("certificate")
    assert section is not None and not section.notes and "do not pay for 8 images" in section.content["says_nothing"]


@pytest.mark.parametrize("attack", ["pgd(steps=2)", "auto(passes=120)"])
def test_other_attacks_carry_none_and_cannot_be_checked(attack: str) -> None:
    assert run(tiny_vit(), attack=attack).section("certificate") is None
    with pytest.raises(UsageError, match="name auto among the attacks"):
        run(tiny_vit(), attack=attack, check=True)


def test_checks_join_a_result_that_was_stored_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def checks(occasion: attachments.Occasion) -> Section:
        asked.append(occasion.result.job.key)
        return Section("check", {"verdict": "holds"}, notes=("check: holds",))

    monkeypatch.setitem(attachments.ATTACHMENTS._entries, "check", checks)
    run(tiny_vit(), out=tmp_path)
    assert not asked
    for _ in range(2):
        section = run(tiny_vit(), out=tmp_path, check=True).section("check")
        assert section is not None and section.content == {"verdict": "holds"}
    assert len(asked) == 1
