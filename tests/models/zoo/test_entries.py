"""Every entry of the zoo is built as declared, without its weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from vitattack.core.errors import UsageError
from vitattack.data.catalogue import DATA_SETS
from vitattack.models.normalise import NORMALISERS
from vitattack.models.victim import frozen
from vitattack.models.weights.adapters import ADAPTERS
from vitattack.models.zoo.catalogue import zoo_entries
from vitattack.models.zoo.count_figures import count_figures
from vitattack.models.zoo.entry import ZooEntry
from vitattack.models.zoo.load import build_victim, declared_normaliser
from vitattack.text.image_transform import parse_transform
from vitattack.threats.base import parse_threat

# Prefixes of ids: every source of robust transformers, the clean models, and the papers' numbers.
SHELVES = {
    "rb": 36,
    "light": 22,
    "singh": 13,
    "mo": 2,
    "ares": 19,
    "easyrobust": 21,
    "mimir": 20,
    "advxl": 2,
    "bai2021": 3,
    "rvt": 2,
    "aroid": 2,
    "robustvlm": 16,
    "wang": 6,
    "vitwrn2025": 10,
    "aas2024": 24,
    "tora2023": 5,
}


def builds() -> Iterator[ZooEntry]:
    """One entry for each architecture with its arguments: what is equal is built once."""
    seen = set()
    for entry in zoo_entries().values():
        key = (entry.arch, repr(sorted(entry.arch_kwargs.items())), entry.input, entry.num_classes)
        if entry.arch is not None and key not in seen:
            seen.add(key)
            yield entry


@pytest.mark.parametrize("entry", list(builds()), ids=lambda entry: entry.id)
def test_it_is_built_at_full_shape(entry: ZooEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    # numbers that the meta device draws are none, and take a third of the time
    monkeypatch.setattr("timm.layers.weight_init._trunc_normal_", lambda tensor, *_: tensor)
    if str(entry.arch).startswith("open_clip:"):
        pytest.importorskip("open_clip")
    with torch.device("meta"):
        victim = build_victim(entry)
    with frozen(victim), torch.no_grad():
        assert victim(victim.grey()).shape == (1, entry.num_classes)


def test_every_source_is_there() -> None:
    found: dict[str, int] = {}
    for name in zoo_entries():
        if "/" in name:
            shelf = name.partition("/")[0]
            found[shelf] = found.get(shelf, 0) + 1
    assert found == SHELVES
    assert sum(name.startswith("timm:") for name in zoo_entries()) >= 50


def test_words_of_entries_mean_something() -> None:
    for entry in zoo_entries().values():
        assert all(name in ADAPTERS for name in entry.adapter), entry.id
        parse_transform(entry.transform)
        if entry.threat is not None:
            parse_threat(entry.threat)
        assert entry.dataset in {*DATA_SETS, "imagenette"}, entry.id  # `models check` looks for images by this name
        if entry.weights is None and not entry.id.startswith(("vitwrn2025", "aas2024", "tora2023")):
            assert entry.page, entry.id
        if entry.arch is None:
            assert entry.notes, entry.id
        for one in entry.reported:
            assert one.protocol and one.source and 0 <= one.value <= 100, entry.id
        assert entry.licence != "unknown" and set(entry.unverified) <= set(ZooEntry.__dataclass_fields__), entry.id


@pytest.mark.parametrize(
    ("name", "normalize", "metric", "value"),
    [  # trap 1, and a number each, from RobustBench and the papers
        ("rb/Singh2023Revisiting_ViT-S-ConvStem", "imagenet", "robust", 48.08),
        ("rb/Singh2023Revisiting_ViT-B-ConvStem", "none", "robust", 54.66),
        ("rb/Xu2024MIMIR_Swin-B", "none", "robust", 55.90),
        ("rb/Debenedetti2022Light_XCiT-M12/imagenet", "none", "clean", 74.04),
        ("rb/Debenedetti2022Light_XCiT-S12/cifar10", "cifar10", "robust", 56.14),
        ("rb/Debenedetti2022Light_XCiT-S12/cifar100", "cifar100", "clean", 67.34),
        ("ares/swinb_at", "imagenet", "robust", 57.3),
        ("ares/xcits_sota", "none", "clean", 72.34),
        ("timm:vit_base_patch16_224.augreg_in1k", "half", "clean", 79.154),
        ("vitwrn2025/vit_b_2-2000/cifar10-linf", "none", "robust", 71.31),
        ("aas2024/TRADES+AAS-AT/cifar100", "none", "robust", 28.06),
        ("tora2023/tora_vit_b_16-0.5", "none", "robust", 37.99),
    ],
)
def test_normalisation_and_numbers(name: str, normalize: str, metric: str, value: float) -> None:
    entry = zoo_entries()[name]
    assert declared_normaliser(entry) == NORMALISERS[normalize]
    assert value in [one.value for one in entry.reported if one.metric == metric]


def test_clean_timm_models_have_pinned_tags_that_timm_knows_and_its_normalisation() -> None:
    """Trap 5: a name without a tag means other weights in another version."""
    import timm

    for name in (n for n in zoo_entries() if n.startswith("timm:")):
        entry, full = zoo_entries()[name], name.removeprefix("timm:")
        assert entry.weights is not None and entry.weights.mirrors == (name,)
        assert full in timm.list_pretrained(full.partition(".")[0] + ".*"), name
        cfg = timm.get_pretrained_cfg(full)
        assert cfg is not None and declared_normaliser(entry) == (tuple(cfg.mean), tuple(cfg.std)), name
        assert entry.input == cfg.input_size[-1], name
        assert entry.transform == f"{cfg.interpolation}{int(entry.input / cfg.crop_pct)}crop{entry.input}", name


@pytest.mark.parametrize(
    ("name", "parameters", "gflops", "layers", "heads"),
    [
        ("tiny-vit", 1_275_018, None, 6, {4}),
        ("timm:vit_base_patch16_224.augreg_in1k", 86_567_656, 2 * 17.5639, 12, {12}),
        ("timm:swin_tiny_patch4_window7_224.ms_in1k", 28_288_354, None, 12, {3, 6, 12, 24}),
        ("timm:cait_xxs24_224.fb_dist_in1k", 11_956_264, None, 26, {4}),
        ("rb/Debenedetti2022Light_XCiT-S12/cifar10", 25_872_154, None, 14, {8}),
        ("timm:poolformer_s12.sail_in1k", 11_915_176, None, 0, set()),
        ("timm:resnet50.tv_in1k", 25_557_032, 2 * 4.0892, 0, set()),
    ],
)
def test_figures(name: str, parameters: int, gflops: float | None, layers: int, heads: set[int]) -> None:
    found = count_figures(zoo_entries()[name])
    assert found.parameters == parameters
    assert len(found.attention) == layers and {a.heads for a in found.attention} == heads
    if gflops is not None:
        assert found.flops / 1e9 == pytest.approx(gflops, rel=1e-4)


def test_figures_of_an_entry_whose_input_is_wrong() -> None:
    entry = replace(zoo_entries()["tiny-vit"], input=5)
    with pytest.raises(UsageError, match="'tiny-vit' cannot be run at 5 px .*: correct its input") as caught:
        count_figures(entry)
    assert "\n" not in str(caught.value)


def test_flops_of_a_vit_are_those_of_its_formula() -> None:
    """Patches, twelve blocks of 24 N D^2 + 4 N^2 D, and the head; N tokens of D channels."""
    n, d = 197, 768
    wanted = 2 * 196 * 768 * d + 12 * (24 * n * d * d + 4 * n * n * d) + 2 * d * 1000
    assert count_figures(zoo_entries()["timm:vit_base_patch16_224.augreg_in1k"]).flops == wanted


def test_attention_found_without_values_is_that_of_the_real_model() -> None:
    from vitattack.models.attention.layer_detection import attention_layers

    for name in ("tiny-vit", "timm:levit_128s.fb_dist_in1k"):
        victim = build_victim(zoo_entries()[name]).eval()
        real = attention_layers(victim, victim.grey()).layers
        hollow = count_figures(zoo_entries()[name]).attention
        assert [(a.name, a.heads, a.fused, a.kind) for a in hollow] == [
            (a.name, a.heads, a.fused, a.kind) for a in real
        ]
