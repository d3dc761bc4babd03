"""Lesions, similarity of blocks and restricted attention as analyses, on one model of every family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.models.blocks.families import cnn, plain_vit, windowed_swin, xcit
from vitattack.analyses.analyze import analyze
from vitattack.analyses.findings import Findings
from vitattack.analyses.inside.cka import minibatches
from vitattack.analyses.inside.lesion import draws_of, variants
from vitattack.analyses.inside.questions import Lesion
from vitattack.analyses.measures.correlation import correlation_matrix
from vitattack.analyses.measures.kernels import kernel_alignment
from vitattack.core.errors import UsageError
from vitattack.models.attention.features import block_features
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.blocks.residual import Block, Lesioned
from vitattack.models.blocks.restricted import Restricted, class_token_pairs
from vitattack.models.blocks.tokens import Tokens
from vitattack.models.victim import Victim

IMAGES = torch.rand(7, 3, 32, 32, generator=torch.Generator().manual_seed(8))
LABELS = torch.tensor([0, 1, 2, 3, 4, 5, 6])


def found(name: str, *models: Victim, n: int = 7, **given: Any) -> Findings:
    return analyze(name, list(models), data=(IMAGES[:n], LABELS[:n]), batch_size=3, threads=1, **given)


@torch.no_grad()
def features(victim: Victim, depth: int = 3) -> list[Tensor]:
    names = [f"model.blocks.{number}" for number in range(depth)]
    return block_features(victim, names, "block", lambda: victim(IMAGES))[0]


def test_lesions_are_accuracies_of_models_without_branches() -> None:
    victim = plain_vit()
    with torch.no_grad():
        labels = victim(IMAGES).argmax(1)
        expected = {}
        for number in (0, 2):
            removed = Block(number, f"model.blocks.{number}", ("attention", "mlp")).removals("mlp")
            expected[number] = int((Lesioned(victim, removed)(IMAGES).argmax(1) == labels).sum())
    rows = analyze("lesion", victim, data=(IMAGES, labels), batch_size=3, threads=1, draws=3).rows
    assert rows[0]["removed"] == 0 and rows[0]["correct"] == rows[0]["n"] == 7
    for number, correct in expected.items():
        (row,) = (row for row in rows if row["part"] == "mlp" and row.get("block") == number)
        assert row["correct"] == correct
    drawn = [row for row in rows if "draws" in row]
    assert [(row["part"], row["removed"]) for row in drawn] == [
        (p, n) for p in ("attention", "mlp", "block") for n in (1, 2)
    ]
    assert all(row["min"] <= row["accuracy"] <= row["max"] for row in drawn)  # type: ignore[operator]
    both = next(row for row in drawn if row["part"] == "block" and row["removed"] == 2)
    assert both["min"] == both["max"] and both["se"] == 0, (
        "of three blocks, two can be drawn in one way: never the first"
    )


def test_draws_keep_the_first_block_and_depend_on_the_seed_alone() -> None:
    draws = draws_of(Lesion(draws=25), 8, 0)
    assert list(draws) == [1, 2, 3, 4, 5, 6, 7]
    for count, each in draws.items():
        assert len(each) == 25
        assert all(len(set(chosen)) == count and min(chosen) >= 1 and max(chosen) < 8 for chosen in each)
    assert {number for (number,) in draws[1]} == {1, 2, 3, 4, 5, 6, 7}
    assert draws == draws_of(Lesion(draws=25), 8, 0) != draws_of(Lesion(draws=25), 8, 1)
    assert draws_of(Lesion(counts=(3, 99)), 8, 0) == {3: draws[3]}
    assert draws_of(Lesion(draws=0), 8, 0) == {}
    blocks = [Block(0, "a", ("attention", "mlp")), Block(1, "b", ("attention",))]
    wanted = variants(Lesion(), blocks, {1: [(1,), (1,)]})
    assert ("mlp", (1,)) not in wanted and len(wanted) == 6, "equal draws are measured once, absent branches never"


def test_correlation_and_alignment_are_those_of_all_images_at_once() -> None:
    victim = plain_vit()
    outputs = features(victim)
    rows = found("correlation", victim).rows
    for kind, tokens in (("all", outputs), ("class", [feature[:, 0] for feature in outputs])):
        expected = correlation_matrix(tokens)
        measured = {(row["first"], row["second"]): row["correlation"] for row in rows if row["tokens"] == kind}
        assert len(measured) == 9
        for (i, j), value in measured.items():
            assert value == pytest.approx(expected[i, j], abs=1e-6)  # type: ignore[index]
    other = plain_vit("avg")
    rows = found("cka", victim, other, minibatch=256).rows
    across = {(row["first"], row["second"]): row["cka"] for row in rows if row["model"] != row["other"]}
    for i, one in enumerate(outputs):
        for j, two in enumerate(features(other)):
            assert across[(i, j)] == pytest.approx(kernel_alignment(one, two), abs=1e-5)
    for row in rows:
        if row["model"] == row["other"] and row["first"] == row["second"]:
            assert row["cka"] == pytest.approx(1) and row["high"] - row["low"] < 1e-6  # type: ignore[operator]


def test_a_rest_too_small_for_a_minibatch_joins_the_last() -> None:
    assert minibatches(1000, 256) == [range(256), range(256, 512), range(512, 768), range(768, 1000)]
    assert minibatches(514, 256) == [range(256), range(256, 514)]
    assert minibatches(5, 256) == [range(5)]


def test_the_largest_distance_is_the_model_as_it_is() -> None:
    victim = plain_vit()
    with torch.no_grad():
        labels = victim(IMAGES).argmax(1)
    rows = analyze("restricted", victim, data=(IMAGES, labels), batch_size=3, threads=1, distances=(0, 1)).rows
    kinds = [(row["restriction"], row.get("distance", row.get("blocks"))) for row in rows]
    assert kinds[:5] == [("local", 0), ("random", 0), ("local", 1), ("random", 1), ("local", 3)]
    assert kinds[5:] == [(kind, n) for n in (1, 2, 3) for kind in ("class-first", "class-last")]
    own = class_token_pairs(Tokens(1, (4, 4)))
    with torch.no_grad():
        restricted = Restricted(victim, attention_layers(victim, IMAGES), dict.fromkeys(range(3), own))(IMAGES)
    assert rows[4]["accuracy"] == 1 and rows[0]["correct"] == int((restricted.argmax(1) == labels).sum())
    assert rows[0]["accuracy"] == rows[-1]["accuracy"], "patches that see themselves and the class token, in all blocks"


@pytest.mark.parametrize("victim", [windowed_swin(), xcit()], ids=lambda victim: victim.name)
def test_other_families(victim: Victim) -> None:
    lesions = found("lesion", victim, draws=0, parts=("block",))
    assert len(lesions.rows) == 5
    swin = victim.name == "swin"
    correlated = found("correlation", victim)
    assert len(correlated.rows) == (8 if swin else 12), "blocks of equal shape; of XCiT also two class tokens"
    assert any("blocks of different shape" in remark for remark in correlated.remarks)
    assert len(found("cka", victim).rows) == 16
    assert {row["measure"] for row in found("eigencam", victim, attack="none").rows} == {"entropy", "spread", "centre"}
    with pytest.raises(UsageError, match="do not attend from every patch to every patch"):
        found("restricted", victim)
    if swin:
        with pytest.raises(UsageError, match="attention of 'swin' is in windows.*eigencam takes any model"):
            found("attention-map", victim)
    else:
        maps = found("attention-map", victim, attack="none")
        assert {row["block"] for row in maps.rows} == {"2", "3"}, "the class attention alone"
        assert "xcit: 2 of 4 attention layers are maps over the image" in maps.remarks


def test_a_cnn_is_refused_where_it_makes_no_sense() -> None:
    for name, words in (
        ("lesion", "'cnn' has no attention blocks, so there is nothing to remove"),
        ("restricted", "no attention softmax, so there is nothing to restrict"),
        ("attention-map", "no attention softmax, so there is no attention to draw"),
    ):
        with pytest.raises(UsageError, match=words) as caught:
            found(name, cnn(), attack="none") if name == "attention-map" else found(name, cnn())
        assert "\n" not in str(caught.value)
    assert len(found("cka", cnn()).rows) == 25
    assert len(found("correlation", cnn()).rows) == 1 + 4 + 4
    bare = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 10))
    for name in ("cka", "correlation", "eigencam"):
        with pytest.raises(UsageError, match="neither attention nor residual blocks"):
            found(name, Victim(bare, name="linear", num_classes=10, input_size=32))


def test_one_image_and_wrong_parameters() -> None:
    with pytest.raises(UsageError, match="kernel alignment is of at least 4 images"):
        found("cka", plain_vit(), n=1)
    one = found("correlation", plain_vit(), n=1).rows
    assert len(one) == 18 and all((row["low"], row["high"]) == (0, 1) for row in one), "one image has no interval"
    assert len(found("lesion", plain_vit(), n=1, draws=0).rows) == 10
    for name, given in (
        ("lesion", {"parts": ("mlps",)}),
        ("lesion", {"draws": -1}),
        ("lesion", {"counts": (0,)}),
        ("cka", {"minibatch": 3}),
        ("restricted", {"distances": (-1,)}),
        ("eigencam", {"pictures": -1}),
    ):
        with pytest.raises(UsageError):
            found(name, plain_vit(), **given)


def test_attention_maps_are_the_class_token_row_of_the_softmax() -> None:
    from vitattack.models.blocks.attended import attended, readable_layers

    for registers in (0, 2):
        victim = plain_vit(registers=registers)
        layers = attention_layers(victim, IMAGES)
        maps = attended(victim, layers, readable_layers(victim, layers), IMAGES)
        model: Any = victim.model
        with torch.no_grad():
            x = model._pos_embed(model.patch_embed(IMAGES))
            block = model.blocks[0]
            q, k, _ = block.attn.qkv(block.norm1(x)).reshape(7, -1, 3, 2, 12).permute(2, 0, 3, 1, 4)
            p = (q @ k.transpose(-2, -1) / 12**0.5).softmax(-1).mean(1)
        assert torch.allclose(maps[0].flatten(1), p[:, 0, 1 + registers :], atol=1e-5)


def test_masks_have_to_fit_and_give_the_overlap(tmp_path: Path) -> None:
    masks = np.zeros((7, 32, 32), dtype=np.uint8)
    masks[:, 8:24, 8:24] = 1
    np.save(tmp_path / "masks.npy", masks)
    rows = found("eigencam", plain_vit(), attack="none", masks=str(tmp_path / "masks.npy")).rows
    means = {row["measure"]: row["mean"] for row in rows}
    assert means["on-mask"] == pytest.approx(means["centre"]), "the mask is the middle quarter"
    assert 0 < means["overlap"] < 1  # type: ignore[operator]
    with pytest.raises(UsageError, match="do not exist: give FILE.npy"):
        found("eigencam", plain_vit(), masks=str(tmp_path / "none.npy"))
    np.save(tmp_path / "few.npy", masks[:5])
    with pytest.raises(UsageError, match="are 5 x 32 x 32, and rows up to 6 .* at 32 x 32 px need one each"):
        found("eigencam", plain_vit(), masks=str(tmp_path / "few.npy"))


def test_attacked_maps_are_of_correctly_classified_images() -> None:
    victim = plain_vit()
    with torch.no_grad():
        labels = victim(IMAGES).argmax(1)
    labels[:2] = (labels[:2] + 1) % 10
    run = analyze("eigencam", victim, data=(IMAGES, labels), batch_size=3, threads=1, attack="pgd(steps=2)", pictures=3)
    counts = {row["condition"]: row["n"] for row in run.rows if row["measure"] == "entropy"}
    assert counts == {"clean": 7, "attacked": 5, "change": 5}
    means = {(row["condition"], row["measure"]): row["mean"] for row in run.rows}
    assert means["attacked", "similarity"] < 1  # type: ignore[operator]
    zero = analyze(
        "eigencam", victim, threat="linf:0", data=(IMAGES, labels), threads=1, attack="pgd(steps=1)", pictures=0
    )
    means = {(row["condition"], row["measure"]): row["mean"] for row in zero.rows}
    assert means["change", "entropy"] == pytest.approx(0, abs=1e-9) and means[
        "attacked", "similarity"
    ] == pytest.approx(1)
    assert len(zero.figures) == 1
