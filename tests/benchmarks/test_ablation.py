"""benchmarks/auto_ablation.py: memoising changes no record, and faults mask gradients as described."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.benchmarks.conftest import ARCH, KWARGS, Files, Script
from tests.conftest import tiny_vit, toy_pictures
from vitattack import evaluate
from vitattack.data import from_tensors
from vitattack.models.attention.rescaled import Rescaled
from vitattack.models.victim import Victim
from vitattack.records.record import SampleRecord
from vitattack.threats.lp import LpBall

BALL = LpBall("linf", 0.004)


def before(record: SampleRecord) -> tuple[int, str, int]:
    """Image, verdict and passes of the search alone, whatever probe follows it."""
    later = sum(int(record.evidence.get(f"spent {name}", 0)) for name in ("probe", "full"))
    return record.index, "robust" if later else record.status, record.forwards + record.backwards - later


@pytest.mark.slow
def test_what_is_remembered_gives_the_records_of_an_evaluation(script: Script, tmp_path: Path) -> None:
    ablation, made_of, victim = script("auto_ablation.py"), script("auto_variants.py"), tiny_vit()
    x = toy_pictures(24, seed=5)
    with torch.no_grad():
        data = from_tensors(x, victim(x).argmax(1))
    made = {name: made_of.built(name, BALL) for name in ("auto(k=2, long=4)", "auto(k=2, long=6)")}
    first, second = made.values()
    made |= {"without targets": made_of.without(first, "targets"), "everybody": replace(second, share=1.0)}
    found = ablation.run(victim, {"whole": first} | made, BALL, data, tmp_path)
    for text in ("auto(k=2, long=4)", "auto(k=2, long=6)"):
        plain = evaluate(victim, text, threat=BALL, data=data, threads=1).results[0].records
        assert [before(r) for r in found[text]] == [before(r) for r in plain]
    assert {r.status for r in found["whole"]} == {"robust", "fooled"}
    shown = ablation.figures("everybody", found)
    assert shown["per survivor"] > ablation.figures("auto(k=2, long=6)", found)["per survivor"]

    class Never:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError("a variant that is stored was run again")

    ablation.attacked = Never()
    assert ablation.run(victim, {"whole": first} | made, BALL, data, tmp_path) == found


def test_variants_differ_from_the_whole_and_from_each_other(script: Script) -> None:
    made = script("auto_variants.py").variants(BALL)
    assert len({repr(attack) for attack in made.values()}) == len(made) >= 36
    before, after = ({stage.name for stage in made[name].opening} for name in ("whole", "without targets"))
    assert before - after == {"targets"}


def test_a_model_without_attention_has_no_view_to_be_attacked_through(script: Script, tmp_path: Path) -> None:
    torch.manual_seed(0)
    linear = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 4))
    victim = Victim(linear, name="linear", num_classes=4, input_size=8).eval()
    x = torch.rand(4, 3, 8, 8)
    with torch.no_grad():
        data = from_tensors(x, victim(x).argmax(1))
    made = {name: script("auto_variants.py").variants(BALL)[name] for name in ("whole", "views whatever the attention")}
    found = script("auto_ablation.py").run(victim, made, BALL, data, tmp_path)
    whole, always = ([record.status for record in records] for records in found.values())
    assert always == whole and "robust" in whole


def test_gradients_are_masked(script: Script) -> None:
    mask_gradients, victim = script("masked_gradients.py").mask_gradients, tiny_vit()
    x = toy_pictures(3).requires_grad_()
    scale = torch.full((2,), 1e3)
    with torch.no_grad():
        assert torch.equal(mask_gradients(victim, "logits")(x), 1e3 * victim(x))
        torch.testing.assert_close(
            mask_gradients(victim, "attention")(x), Rescaled(victim, scale)(x), rtol=1e-2, atol=1e-2
        )
    assert (mask_gradients(victim, "attention")(x) - victim(x)).abs().max() > 0.1  # the victim itself is left alone
    blocked = mask_gradients(victim, "quantiser")
    assert isinstance(blocked, Victim) and torch.equal(blocked(x), victim((x * 16).round() / 16))
    assert not torch.autograd.grad(blocked(x).sum(), x)[0].any()
    with pytest.raises(SystemExit, match="logits, attention or quantiser"):
        mask_gradients(victim, "nothing")


def test_a_row_for_every_variant(
    script: Script, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--models", f"{files.model}=6", f"{files.model}+logits=4", "--out", str(tmp_path / "ablation")]
    words += ["--data", files.data, "--threat", "linf:0.004", "--only", "long runs of 25", "without rounds"]
    words += ["--arch", ARCH, "--arch-kwargs", json.dumps(KWARGS), "--normalize", "none", "--json", str(tmp_path / "j")]
    monkeypatch.setattr(sys, "argv", ["auto_ablation.py", *words])
    script("auto_ablation.py").main()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert [row[0] for row in rows[2:]] == ["whole", "without rounds", "long runs of 25 steps"]
    assert rows[0][1:] == [tmp_path.name, f"{tmp_path.name}+logits"]
    told = json.loads((tmp_path / "j").read_text())
    prices = [[told[row[0]][model]["per survivor"] for row in rows[2:]] for model in rows[0][1:]]
    assert all(cheapest < cut < whole for whole, cheapest, cut in prices)
    assert rows[2][1].startswith(f"{told['whole'][tmp_path.name]['survivors']} / {prices[0][0]:.0f} / ")


def test_masking_lists_whom_only_the_reference_broke(
    script: Script, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--models", "tiny-vit+quantiser", "--limit", "6", "--out", str(tmp_path), "--json", str(tmp_path / "j")]
    words += ["--attack", "fgsm", "--against", "square(queries=100)", "--threat", "linf:24/255"]
    monkeypatch.setattr(sys, "argv", ["auto_masking.py", *words])
    script("auto_masking.py").main()
    (told,) = json.loads((tmp_path / "j").read_text()).values()
    shown = capsys.readouterr().out
    left = told["auto leaves"] - told["autoattack leaves"]
    assert len(told["exceptions"]) == left > 0 and f"auto leaves image {told['exceptions'][0]}" in shown
    assert any("gradient" in doubt for doubt in told["doubts"]) and "SAYS NOTHING" not in shown
