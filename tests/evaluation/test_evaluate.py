"""`evaluate` end to end: numbers, resume, shards, memory, doubts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitattack
from tests.conftest import tiny_vit, toy_pictures
from vitattack.attacks.base import Crafted
from vitattack.attacks.gradient.loop import Gradient
from vitattack.core.errors import UsageError, VitattackError
from vitattack.evaluation.evaluate import evaluate
from vitattack.models.victim import Victim

Images = tuple[Tensor, Tensor]
SETTINGS: dict[str, Any] = {"threat": "linf:0.002", "batch_size": 4, "threads": 1}


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
    assert part.count(b'{"index":') == 4 * after and part.count(b"\n") == 5 * after
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
    """A model with one property that calls for a doubt."""

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


def test_a_success_that_hangs_on_noise_is_tried_again(toy_images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unconfirmed claims keep their samples under attack; those never confirmed widen the interval."""
    calls = []
    original = Gradient.__call__

    def boasting(self: Gradient, victim: nn.Module, x: Tensor, y: Tensor, **more: Any) -> Any:
        calls.append(len(x))
        crafted = original(self, victim, x, y, **more)
        if len(calls) == 1:  # nothing done, everything claimed
            return crafted._replace(x_adv=x.clone(), evidence={**crafted.evidence, "fooled": torch.ones(len(x)).bool()})
        return crafted

    plain = evaluate(tiny_vit(), "pgd(steps=5)", data=toy_images, **{**SETTINGS, "batch_size": 12})
    monkeypatch.setattr(Gradient, "__call__", boasting)
    again = evaluate(tiny_vit(), "pgd(steps=5)", data=toy_images, **{**SETTINGS, "batch_size": 12})
    assert calls == [12, 12]
    left = again.results[0]
    assert left.count("fooled") > 0 and abs(left.count("fooled") - plain.results[0].count("fooled")) <= 2
    assert left.fragile == left.count("robust") and any(
        "not reproduced at another batch size" in doubt for doubt in left.doubts
    )
    assert left.robust.low < left.robust.accuracy


def test_equal_weights_in_another_function_are_another_job(tmp_path: Path, toy_images: Images) -> None:
    class Blurred(nn.Module):
        def __init__(self, k: int) -> None:
            super().__init__()
            self.inner, self.k = tiny_vit().model, k

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x.roll(self.k, -1))
            return out

    first = evaluate(Blurred(0), "fgsm", data=toy_images, out=tmp_path, **SETTINGS)
    second = evaluate(Blurred(9), "fgsm", data=toy_images, out=tmp_path, **SETTINGS)
    assert first.clean.correct == 12 > second.clean.correct
    again = evaluate(Blurred(0), "fgsm", data=toy_images, out=tmp_path, **SETTINGS)
    assert again.clean.correct == 12 and len(list(tmp_path.iterdir())) == 2


def test_fresh_shards_forget_their_own_part_only(tmp_path: Path, toy_images: Images) -> None:
    def run(k: int, **more: Any) -> Any:
        return evaluate(tiny_vit(), "fgsm", data=toy_images, out=tmp_path, shard=(k, 2), **SETTINGS, **more)

    run(0)
    whole = run(1)
    assert whole.n == 12 and run(0, fresh=True).n == 12
    assert len(samples(tmp_path)) == 1
    assert evaluate(tiny_vit(), "fgsm", data=toy_images, out=tmp_path, fresh=True, **SETTINGS).n == 12


def test_memory_that_ends_in_the_model_itself(toy_images: Images) -> None:
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = tiny_vit().model

        def forward(self, x: Tensor) -> Tensor:
            if len(x) > 8:
                raise RuntimeError("CUDA out of memory. Tried to allocate")
            out: Tensor = self.inner(x)
            return out

    found = evaluate(Small(), "fgsm", data=toy_images, **{**SETTINGS, "batch_size": 12})
    assert found.n == 12 and any("halved 1 times" in doubt for doubt in found.doubts)


def test_doubts_are_raised_for_what_records_show(monkeypatch: pytest.MonkeyPatch, toy_images: Images) -> None:
    x, y = toy_images
    nudged = x.clone()
    nudged[0, 0, 0, 0] = -1e-6
    assert any("1 images lay outside" in d for d in evaluate(tiny_vit(), "fgsm", data=(nudged, y), **SETTINGS).doubts)

    def careless(self: Gradient, victim: nn.Module, x: Tensor, y: Tensor, **_: Any) -> Crafted:
        return Crafted(x + 0.1, {})  # out of the budget, and no word about passes

    monkeypatch.setattr(Gradient, "__call__", careless)
    broken = evaluate(tiny_vit(), "fgsm", data=toy_images, **SETTINGS)
    assert broken.results[0].count("invalid") == broken.results[0].violations == 12
    assert any("12 candidates broke the budget" in doubt for doubt in broken.doubts)
    assert broken.worst_case.correct == 0 and broken.worst_case.high == 1.0


def test_passes_an_attack_does_not_account_for_are_spread_evenly(
    monkeypatch: pytest.MonkeyPatch, toy_images: Images
) -> None:
    def foreign(self: Gradient, victim: nn.Module, x: Tensor, y: Tensor, **_: Any) -> Crafted:
        with torch.no_grad():
            victim(torch.cat([x, x[:1]]))
        return Crafted(x, {})

    monkeypatch.setattr(Gradient, "__call__", foreign)
    found = evaluate(tiny_vit(), "fgsm", data=toy_images, **SETTINGS).results[0]
    # clean 1, attack 1 (2 for the first of each batch of 4), verdict 1
    assert [r.forwards for r in found.records] == [4, 3, 3, 3] * 3


def test_a_clean_accuracy_that_does_not_fit_the_entry_is_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from vitattack.models.zoo.catalogue import zoo_entries
    from vitattack.models.zoo.entry import Reported

    entry = zoo_entries()["tiny-vit"]
    claim = Reported("clean", 99.9, 10_000, "a test")
    monkeypatch.setattr("vitattack.models.zoo.load.zoo_entry", lambda id_: replace(entry, reported=(claim,)))
    doubts = evaluate("tiny-vit", "fgsm", limit=32, threads=1).doubts
    assert any("does not fit the 99.9%" in doubt for doubt in doubts)


def test_calibration_images_are_never_the_evaluated_ones(toy_images: Images) -> None:
    from vitattack.data import load_data
    from vitattack.evaluation.prepare import calibration_images

    demo = load_data("cifar10-demo[:10]")
    assert calibration_images(None, demo, None).text == "cifar10-calib"
    calib = load_data("cifar10-calib[:40]")
    spare = calibration_images(None, calib, None)
    assert len(spare) == 88 and not set(spare.rows) & set(calib.rows)
    with pytest.raises(UsageError, match="give --calibration"):
        calibration_images(None, load_data("cifar10-calib"), None)


def test_what_does_not_apply_is_refused(toy_images: Images, tmp_path: Path) -> None:
    from vitattack.models.zoo.file_options import FileOptions

    for settings, message in (
        ({"calibration": "cifar10-calib"}, "for attacks that learn"),
        ({"transform": "resize224x224"}, "a transform is for folder: data"),
        ({"options": FileOptions(arch="x")}, "--arch describes a checkpoint file, 'tiny-vit' is none"),
        ({"data_dir": tmp_path / "nowhere"}, "does not exist"),
        ({"threads": 0}, "0 threads"),
    ):
        with pytest.raises(UsageError, match=message):
            evaluate("tiny-vit", "fgsm", limit=4, **settings)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="float16 weights"):
        evaluate(tiny_vit().model.half(), "fgsm", data=toy_images, **SETTINGS)
    grey = toy_images[0][:, :1], toy_images[1]
    with pytest.raises(UsageError, match="have 1 channels, 'toy' takes 3"):
        evaluate(tiny_vit(), "fgsm", data=grey, **SETTINGS)
    with pytest.raises(UsageError, match="divide by 255"):
        vitattack.attack("pgd")(tiny_vit(), toy_images[0] * 255, toy_images[1])


def test_multihead_attention_takes_one_path_for_verdict_and_gradient() -> None:
    class Torchs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)

        def forward(self, x: Tensor) -> Tensor:
            seen.append(torch.backends.mha.get_fastpath_enabled())
            out: Tensor = self.layer(x.flatten(2).transpose(1, 2)[..., :3].repeat(1, 1, 3)[..., :8]).mean(1)
            return out

    seen: list[bool] = []
    x = toy_pictures(2)[:, :, ::8, ::8]
    before = torch.backends.mha.get_fastpath_enabled()
    evaluate(Torchs(), "fgsm", data=(x, torch.zeros(2).long()), **SETTINGS)
    assert before and seen and not any(seen) and torch.backends.mha.get_fastpath_enabled()


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
    from vitattack.data.formats.row_sources import TensorSource

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
