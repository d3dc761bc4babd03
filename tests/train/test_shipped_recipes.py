"""Shipped recipes: each is read, built part by part, and names its source."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.train.small_runs import run
from vitattack.data.catalogue import DATA_SETS
from vitattack.models.architectures.build import build_architecture
from vitattack.models.zoo.catalogue import zoo_entries
from vitattack.train.courses import load_recipe
from vitattack.train.optim.optimisers import Lion
from vitattack.train.recipe import Recipe
from vitattack.train.recipe_file import shipped_recipes
from vitattack.train.recipe_parts import build_parts, canonical_recipe

NAMES = sorted(shipped_recipes())
EMBEDDED = [name for name in NAMES if name.startswith("tiny-")]  # small already
FULL = [name for name in NAMES if not name.endswith("-tiny") and name not in EMBEDDED]


@pytest.mark.parametrize("name", NAMES)
def test_every_part_of_a_recipe_is_known(name: str) -> None:
    recipe = load_recipe(name)
    found = build_parts(recipe)
    assert canonical_recipe(canonical_recipe(recipe)) == canonical_recipe(recipe)
    assert len(found.hooks) == len(recipe.hooks) and recipe.summary and recipe.cost
    assert recipe.init is None or recipe.init.startswith("timm:") or recipe.init in zoo_entries()
    head = recipe.data.partition(":")[0]
    assert head in DATA_SETS or head == "folder"
    assert recipe.synthetic is None or recipe.synthetic in DATA_SETS or recipe.synthetic.startswith("npz:")
    assert (recipe.synthetic is None) == (recipe.share == 0)
    with torch.device("meta"):
        build_architecture(recipe.arch, {"num_classes": 10, **recipe.arch_kwargs})
    for row in recipe.published:
        assert {"metric", "value", "source"} <= set(row) and 0 < row["value"] < 100


@pytest.mark.parametrize("name", FULL)
def test_every_recipe_has_a_tiny_one(name: str) -> None:
    assert f"{name}-tiny" in NAMES
    tiny = load_recipe(f"{name}-tiny")
    assert type(build_parts(tiny).objective) is type(build_parts(load_recipe(name)).objective)
    assert tiny.published == () and tiny.epochs <= 20


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("-tiny")])
def test_a_tiny_recipe_trains(name: str, tmp_path: Path) -> None:
    """On a smaller model and 96 images: its first epoch has every hook, augmentation and attack in it."""
    recipe = load_recipe(name)
    sizes: dict[str, object] = {"embed_dim": 16, "depth": 1, "num_heads": 2}
    if recipe.arch.startswith("xcit"):
        sizes["img_size"] = 32
    few = {"data": "cifar10-calib", "synthetic": None, "share": 0.0, "validation": 16, "probe": 4, "batch_size": 32}
    done = run(replace(recipe, arch_kwargs=sizes, init=None, epochs=1, **few), tmp_path)
    assert [row["step"] for row in done.epochs] == [3] and math.isfinite(done.epochs[0]["loss"])


def published(name: str, attack: str | None) -> float:
    recipe: Recipe = load_recipe(name)
    return next(row["value"] for row in recipe.published if row.get("attack") == attack)


def test_recipes_say_what_the_papers_say() -> None:
    assert published("aas-at", "autoattack") == 57.34 and published("trades", "autoattack") == 54.03
    assert published("light", "autoattack") == 41.78 and published("light", None) == 72.34
    edm = load_recipe("vit-b2-edm")
    made = build_parts(edm)
    assert (edm.batch_size, edm.epochs, edm.share) == (1024, 2000, 0.8)
    assert made.optimiser == Lion(lr=1e-4, decay=0.5)
    assert (made.objective.beta, made.objective.smoothing) == (3, 0.4)
    assert made.objective.inner.steps == 10
    light = build_parts(load_recipe("light"))
    total = 110
    assert light.schedule(0, total) == pytest.approx(0.01) and light.schedule(10, total) == pytest.approx(1)
    assert light.schedule(105, total) == pytest.approx(0.1)
    mo = build_parts(load_recipe("mo2022")).schedule
    assert [mo(epoch, 40) for epoch in (34, 35, 38)] == pytest.approx([1, 0.1, 0.01])
