"""The Python face end to end: numbers, resume, shards, memory, doubts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import vitattack
from tests.conftest import tiny_vit, toy_pictures
from vitattack.attacks.gradient import Gradient
from vitattack.errors import UsageError, VitattackError
from vitattack.evaluation.api import evaluate
from vitattack.models.victim import Victim

Images = tuple[Tensor, Tensor]
SETTINGS = {"threat": "linf:0.002", "batch_size": 4, "threads": 1}


def samples(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(root.glob("*/samples.jsonl"))]


def test_a_plain_module_and_tensors(toy_images: Images) -> None:
    x, y = toy_images
    y = y.clone()
    y[:3] = (y[:3] + 1) % 10  # three clean errors
    evaluation = evaluate(tiny_vit().model, ["pgd(steps=5)", "fgsm"], data=(x, y), **SETTINGS)
    assert evaluation.clean.correct == 9 and evaluation.n == 12
    pgd, fgsm = evaluation.results
    assert pgd.count("clean_wrong") == 3
    assert 0 < pgd.robust.correct < 9
    assert evaluation.worst_case.correct <= min(pgd.robust.correct, fgsm.robust.correct)
    content = json.loads(json.dumps(evaluation.json()))
    assert content["schema"] == 1 and content["run"] is None
    assert [a["attack"] for a in content["attacks"]] == ["pgd(steps=5)", "fgsm"]
    assert content["provenance"]["threads"] == 1 and torch.__version__.startswith(
        content["provenance"]["versions"]["torch"]
    )


def test_the_embedded_model_on_the_embedded_images() -> None:
    evaluation = evaluate("tiny-vit", ["fgsm", "pgd(steps=5)"], limit=50, threads=1)
    assert evaluation.clean.accuracy > 0.4
    assert evaluation.results[1].robust.accuracy > 0.15  # it was trained adversarially
    undefended = evaluate("tiny-vit-standard", "pgd(steps=5)", limit=50, threads=1)
    assert undefended.clean.accuracy > 0.6 and undefended.worst_case.correct <= 2
    assert evaluation.doubts == undefended.doubts == ()


def test_a_finished_job_comes_from_the_store(
    tmp_path: Path, toy_images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = evaluate(tiny_vit().model, "pgd(steps=3)", data=toy_images, out=tmp_path, **SETTINGS)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the attack ran again")

    monkeypatch.setattr(Gradient, "__call__", refuse)
    second = evaluate(tiny_vit().model, "pgd(steps=3, loss=ce)", data=toy_images, out=tmp_path, **SETTINGS)
    assert second.json() == first.json()
    with pytest.raises(AssertionError, match="ran again"):
        evaluate(tiny_vit().model, "pgd(steps=3)", data=toy_images, out=tmp_path, fresh=True, **SETTINGS)


class Crash(Exception):
    pass


@pytest.mark.parametrize("after", [1, 2])
def test_a_crashed_run_goes_on_to_the_same_file(
    tmp_path: Path, toy_images: Images, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    attack = "restarts(2, pgd(steps=2))"
    evaluate(tiny_vit().model, attack, data=toy_images, out=tmp_path / "whole", **SETTINGS)
    calls = 0
    original = Gradient.__call__

    def crash(self: Gradient, *args: Tensor, **more: object) -> object:
        nonlocal calls
        calls += 1
        if calls > 2 * after:
            raise Crash
        return original(self, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Gradient, "__call__", crash)
    with pytest.raises(Crash):
        evaluate(tiny_vit().model, attack, data=toy_images, out=tmp_path / "torn", **SETTINGS)
    monkeypatch.setattr(Gradient, "__call__", original)
    (part,) = samples(tmp_path / "torn")
    assert part.count(b"\n") == 4 * after
    evaluate(tiny_vit().model, attack, data=toy_images, out=tmp_path / "torn", **SETTINGS)
    assert samples(tmp_path / "torn") == samples(tmp_path / "whole")


def test_two_shards_give_the_records_of_one_run(tmp_path: Path, toy_images: Images) -> None:
    attack = "worst(fgsm, gama(steps=4))"
    evaluate(tiny_vit().model, attack, data=toy_images, out=tmp_path / "whole", **SETTINGS)
    one = evaluate(tiny_vit().model, attack, data=toy_images, out=tmp_path / "parts", shard=(0, 2), **SETTINGS)
    assert one.results == ()
    two = evaluate(tiny_vit().model, attack, data=toy_images, out=tmp_path / "parts", shard=(1, 2), **SETTINGS)
    assert two.results[0].n == 12
    assert samples(tmp_path / "parts") == samples(tmp_path / "whole")


def test_samples_do_not_depend_on_the_subset_they_come_in() -> None:
    whole = evaluate("tiny-vit", "pgd(steps=2)", data="cifar10-demo[:24]", batch_size=8, threads=1)
    part = evaluate("tiny-vit", "pgd(steps=2)", data="cifar10-demo[8:16]", batch_size=8, threads=1)
    assert list(whole.results[0].records[8:16]) == list(part.results[0].records)


def test_memory_that_ends_halves_the_batch(toy_images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Gradient.__call__
    sizes = []

    def small_machine(self: Gradient, victim: nn.Module, x: Tensor, y: Tensor, **more: object) -> object:
        sizes.append(len(x))
        if len(x) > 3:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate")
        return original(self, victim, x, y, **more)  # type: ignore[arg-type]

    settings = {**SETTINGS, "batch_size": 12}
    plain = evaluate(tiny_vit().model, "pgd(steps=5)", data=toy_images, **settings)
    monkeypatch.setattr(Gradient, "__call__", small_machine)
    halved = evaluate(tiny_vit().model, "pgd(steps=5)", data=toy_images, **settings)
    assert sizes == [12, 6, 3, 3, 3, 3]  # what fitted is remembered
    assert [r.status for r in halved.results[0].records] == [r.status for r in plain.results[0].records]
    assert any("batches were halved 2 times" in doubt for doubt in halved.doubts)
    monkeypatch.setattr(Gradient, "__call__", lambda *_, **__: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(VitattackError, match="one image does not fit in memory"):
        evaluate(tiny_vit().model, "pgd(steps=5)", data=toy_images, **settings)


def test_other_errors_are_not_taken_for_memory(toy_images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gradient, "__call__", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("shapes differ")))
    with pytest.raises(RuntimeError, match="shapes differ"):
        evaluate(tiny_vit().model, "pgd", data=toy_images, **SETTINGS)


class Masked(nn.Module):
    """A model with one property that should make its readers doubt."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.inner, self.kind = tiny_vit().model, kind
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "random":
            x = x + 1e-3 * torch.randn_like(x)
        if self.kind == "buffers":
            self.calls += 1
        out: Tensor = self.inner((x * 8).round() / 8 if self.kind == "quantised" else x)
        if self.kind == "confident":
            out = 1e6 * out
        return out.softmax(1) if self.kind == "probabilities" else out


@pytest.mark.parametrize(
    ("kind", "doubt"),
    [
        ("random", "the model is random: two forwards"),
        ("buffers", "changed its buffers"),
        ("quantised", "exactly zero gradient"),
        ("confident", "exactly zero gradient"),
        ("probabilities", "returns probabilities"),
    ],
)
def test_doubts_name_what_masks_gradients(kind: str, doubt: str, toy_images: Images) -> None:
    x, _ = toy_images
    model = Masked(kind)
    torch.manual_seed(0)
    with torch.no_grad():
        y = model(x).argmax(1)
    evaluation = evaluate(model, "pgd(steps=4)", data=(x, y), **SETTINGS)
    assert any(doubt in found for found in evaluation.doubts), evaluation.doubts
    assert evaluate(tiny_vit().model, "pgd(steps=4)", data=toy_images, **SETTINGS).doubts == ()


def test_logits_a_thousand_times_larger_hide_from_cross_entropy_only(toy_images: Images) -> None:
    class Loud(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = tiny_vit().model

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = 1e5 * self.inner(x)
            return out

    def robust(model: nn.Module, attack: str) -> int:
        return evaluate(model, attack, data=toy_images, **SETTINGS).worst_case.correct

    for attack in ("pgd(loss=margin)", "dlr(steps=20)", "mifpe(steps=20)"):
        assert robust(Loud(), attack) <= robust(tiny_vit().model, "pgd")
    assert robust(Loud(), "pgd") > robust(tiny_vit().model, "pgd")


def test_wrong_numbers_and_mismatches(toy_images: Images) -> None:
    model = tiny_vit().model
    x, y = toy_images
    for data, message in (
        ((x * 255, y), "divide by 255"),
        ((x, y + 10), "is no class of"),
        ((torch.full_like(x, torch.nan), y), "NaN"),
    ):
        with pytest.raises(UsageError, match=message):
            evaluate(model, "pgd", data=data, **SETTINGS)
    with pytest.raises(UsageError, match="has 10 classes, 'npz"):
        wrong_classes()
    for settings, message in (
        ({"batch_size": 0}, "batch size 0"),
        ({"seed": -1}, "seed -1"),
        ({"shard": (2, 2)}, "shard 2/2"),
        ({"device": "tpu"}, "device 'tpu' is not understood"),
        ({"device": "cuda:7"}, "CUDA devices; use --device cpu"),
        ({"limit": 0}, "limit 0"),
    ):
        with pytest.raises(UsageError, match=message):
            evaluate(model, "pgd", data=toy_images, **{**SETTINGS, **settings})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="named twice"):
        evaluate(model, ["pgd", "pgd(steps=20)"], data=toy_images, **SETTINGS)
    with pytest.raises(UsageError, match="no attack is named"):
        evaluate(model, [], data=toy_images, **SETTINGS)


def wrong_classes() -> None:
    from vitattack.data.dataset import DataSet
    from vitattack.data.sources import TensorSource

    source = TensorSource(toy_pictures(), torch.zeros(12).long(), num_classes=100)
    evaluate(tiny_vit().model, "pgd", data=DataSet("npz:x", source, tuple(range(12))), **SETTINGS)


def test_the_callers_model_and_threads_are_left_alone(toy_images: Images) -> None:
    model, threads = tiny_vit().model.train(), torch.get_num_threads()
    evaluate(model, "fgsm", data=toy_images, **{**SETTINGS, "threads": threads + 1})
    assert model.training and all(p.requires_grad and p.grad is None for p in model.parameters())
    assert torch.get_num_threads() == threads


def test_attack_is_callable_on_any_module(toy: Victim, toy_images: Images) -> None:
    x, y = toy_images
    crafter = vitattack.attack("pgd(steps=5)", threat="linf:1/255")
    crafted = crafter(toy.model, x, y)
    assert crafter.threat.allows(x, crafted.x_adv).all() and crafted.evidence["fooled"].any()
    assert torch.equal(crafted.x_adv, crafter(toy.model, x, y).x_adv)


def test_public_names_are_lazy_and_real() -> None:
    for name in vitattack.__all__:
        assert getattr(vitattack, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'evil'"):
        vitattack.evil  # noqa: B018
