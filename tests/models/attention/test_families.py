"""Families of timm, transformers, vit-pytorch and torchvision, small, against layer counts written by hand.

The rows are those of the coverage table, which `python benchmarks/attention_table.py` prints.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import timm
import torch
from attention_rows.of_timm import FAMILIES, WITHOUT, Family, without
from attention_rows.row import Row, check
from timm.models._registry import _module_to_models

from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.victim import Victim


@pytest.mark.parametrize(
    "family",
    [pytest.param(f, id=f.model, marks=() if f.fast else pytest.mark.slow) for f in FAMILIES],
)
def test_family(family: Family) -> None:
    check(family.row(), each_layer=False)


def test_every_model_file_of_timm_is_accounted_for() -> None:
    if not timm.__version__.startswith("1.0.31"):
        pytest.skip(f"the table is that of timm 1.0.31, this is {timm.__version__}")
    covered = {family.module for family in FAMILIES}
    assert covered | WITHOUT == set(_module_to_models)
    assert not covered & WITHOUT


@pytest.mark.slow
@pytest.mark.parametrize("module", sorted(WITHOUT))
def test_the_other_files_hold_no_softmax(module: str) -> None:
    if module not in _module_to_models:
        pytest.skip(f"timm {timm.__version__} has no {module}")
    assert check(without(module)).calls == ()


@pytest.mark.parametrize(
    "name",
    ["resnet18", "convnext_atto", "mobilenetv3_small_050", "efficientnet_lite0", "lcnet_050", "mixer_s32_224"],
)
def test_gates_mixers_and_convolutions_are_no_attention(name: str) -> None:
    size = 224 if "mixer" in name else 64
    torch.manual_seed(0)
    victim = Victim(timm.create_model(name).eval(), name=name, num_classes=1000, input_size=size)
    found = attention_layers(victim, torch.rand(1, 3, size, size))
    assert found.calls == () and found.unseen == ()


# Each a way of its own: windows, products, class attention, heads mixed by einsum, vectors of weights, kernels.
FAST = {
    "ViTForImageClassification eager", "ViTForImageClassification sdpa", "SwinForImageClassification eager",
    "DeiTForImageClassification sdpa", "Siglip2ForImageClassification sdpa", "PerceiverForImageClassificationLearned eager",
    "vit", "swin", "cait.CaiT", "deepvit.DeepViT", "xcit.XCiT", "na_vit.NaViT", "t2t.T2TViT", "learnable_memory_vit.Adapter",
}  # fmt: skip


def of_library(library: str) -> Iterator[Any]:
    for row in importlib.import_module(f"attention_rows.of_{library}").ROWS:
        marks = () if row.name in FAST else pytest.mark.slow
        yield pytest.param(library, row, id=row.name, marks=marks)


@pytest.mark.parametrize(
    ("library", "row"),
    [pair for name in ("torchvision", "transformers", "vit_pytorch", "x_transformers") for pair in of_library(name)],
)
@pytest.mark.filterwarnings("ignore")  # of models of others
def test_a_library(library: str, row: Row) -> None:
    pytest.importorskip(library)
    if row.unseen:
        with pytest.raises(AssertionError, match="layers found"):
            check(row)
    else:
        check(row)
