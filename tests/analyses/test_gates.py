"""Gates of TORA-ViTs: maps by their closed form, differences of the adapters by hand, and what has no gates."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from tests.conftest import small_tora, tiny_vit, toy_pictures
from vitattack.analyses.analyze import analyze
from vitattack.analyses.figure import Pictures
from vitattack.analyses.findings import Findings
from vitattack.analyses.inside.gates import ADAPTERS, accuracy_gates
from vitattack.analyses.measures.heatmaps import around_mean, spread
from vitattack.core.errors import UsageError
from vitattack.models.architectures.tora import ToraViT
from vitattack.models.victim import Victim

X = toy_pictures(5)
Y = torch.arange(5)


def found(*models: Victim, **given: Any) -> Findings:
    return analyze("gates", list(models), data=(X, Y), batch_size=2, threads=1, **given)


def model_of(victim: Victim) -> ToraViT:
    assert isinstance(victim.model, ToraViT)
    return victim.model


@pytest.mark.parametrize("gate", ["mean", "diagonal"])
@torch.no_grad()
def test_maps_are_the_weights_of_features_of_a_place(gate: Any) -> None:
    """In the first block, from the scores of both adapters; without a class token, keys begin with that of the token."""
    victim = small_tora(gate=gate)
    model = model_of(victim)
    net: Any = model.backbone
    z = net.blocks[0](net._pos_embed(net.patch_embed(X)))
    layer: Any = model.layers[0]
    streams = [layer.acc(z), layer.rob(z)]
    q, keys = layer.fusion.query(z), [layer.fusion.key(stream) for stream in streams]
    if gate == "diagonal":
        scores = [(q * key).sum(-1) / 32**0.5 for key in keys]
        expected = torch.stack(scores).softmax(0)[0]
    else:
        scores = [q @ key.transpose(1, 2) / 32**0.5 for key in keys]
        expected = torch.stack(scores).softmax(0)[0].mean(1)
    maps = accuracy_gates(victim, model, X)
    assert len(maps) == 2 and maps[0].shape == (5, 8, 8)
    torch.testing.assert_close(maps[0].flatten(1), expected)
    assert not any(module._forward_hooks for module in victim.modules())


def test_differences_are_taken_image_by_image(tmp_path: Path) -> None:
    victim = small_tora()
    np.save(tmp_path / "masks.npy", np.pad(np.ones((5, 16, 32), dtype=np.uint8), ((0, 0), (16, 0), (0, 0))))
    rows = found(victim, masks=str(tmp_path / "masks.npy")).rows
    by = {(row["adapter"], row["block"], row["measure"]): row for row in rows}
    maps = accuracy_gates(victim, model_of(victim), X)
    for block, each in enumerate(maps):
        large = torch.nn.functional.interpolate(each[:, None].double(), size=32, mode="bilinear")[:, 0]
        difference = spread(large) - spread(1 - large)
        row: Any = by["accuracy - robustness", str(block), "spread"]
        assert (row["mean"], row["n"]) == (pytest.approx(float(difference.mean()), abs=1e-6), 5)
        half = 1.96 * float(difference.std()) / 5**0.5
        assert row["high"] - row["mean"] == pytest.approx(half, rel=1e-3)
        below: Any = by["accuracy", str(block), "on-mask"]
        share = large[:, 16:].sum((1, 2)) / large.sum((1, 2))
        assert below["mean"] == pytest.approx(float(share.mean()), abs=1e-6)
        weight: Any = by["accuracy", str(block), "weight"]
        assert weight["mean"] == pytest.approx(float(each.double().mean()), abs=1e-6)


def test_forced_gates_give_all_weight_to_one_adapter() -> None:
    runs = {side: found(small_tora(gates=side), pictures=0) for side in ("acc", "rob")}
    for side, weight in (("acc", 1.0), ("rob", 0.0)):
        rows = [row for row in runs[side].rows if row["measure"] == "weight"]
        assert len(rows) == 2 and all(row["mean"] == row["low"] == row["high"] == weight for row in rows)
    assert "in 0 of 2 blocks, the other way round in 0, within sampling in 2" in runs["acc"].remarks[-1]


def test_the_claim_is_counted_in_blocks_and_drawn_blue_white_red() -> None:
    run = found(small_tora(), small_tora(1), pictures=2)
    assert len(run.remarks) == 2 and all("as the poster says" in remark for remark in run.remarks)
    drawn = run.figures[-1]
    assert isinstance(drawn, Pictures) and "Weight of the accuracy adapter" in [figure.title for figure in run.figures]
    assert drawn.columns == ("image", *(f"{name}, {side}, clean" for name in run.models for side in ADAPTERS.values()))
    for _, *maps in drawn.images:
        accuracy, robustness = (imread(io.BytesIO(base64.b64decode(each)))[..., :3] for each in maps[:2])
        assert np.abs(accuracy - robustness[..., ::-1]).max() < 0.01, "red and blue change places between the adapters"
        assert (accuracy[..., 0] > accuracy[..., 2] + 0.2).any() and (accuracy[..., 2] > accuracy[..., 0] + 0.2).any()


def test_maps_around_their_mean() -> None:
    scaled = around_mean(torch.tensor([[[1.0, 2.0], [3.0, 6.0]], [[4.0, 4.0], [4.0, 4.0]]]))
    expected = torch.tensor([[[1 / 6, 1 / 3], [0.5, 1.0]], [[0.5, 0.5], [0.5, 0.5]]])
    assert torch.allclose(scaled, expected)


def test_models_without_gates_are_refused() -> None:
    for victim in (tiny_vit(), small_tora(tuning="single")):
        with pytest.raises(UsageError, match="has no gates between adapters: gates are of TORA-ViTs"):
            found(victim)
