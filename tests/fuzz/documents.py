"""Fuzzed YAML files: benchmarks, training recipes, zoo files."""

from __future__ import annotations

from functools import cache

import yaml
from hypothesis import strategies as st

from tests.fuzz.guard import expect
from tests.fuzz.mutations import edited_texts, edited_yaml
from tests.fuzz.target import Target, written
from vitattack.bench.cells import cells
from vitattack.bench.read.benchmark_file import read_benchmark, shipped_benchmarks
from vitattack.core.assets import ZOO_FILE
from vitattack.models.zoo.catalogue import read_zoo_file
from vitattack.train.courses import load_recipe
from vitattack.train.recipe import Recipe
from vitattack.train.recipe_file import recipe_from_json, shipped_recipes
from vitattack.train.recipe_parts import build_parts, canonical_recipe

WORDS = (
    *"pgd aas+pgd auto linf:4/255 l2:0.5 spatial tiny-vit tiny-vit-aas cifar10-demo[:8] model attack threat seed".split(),
    *"trades(beta=6) adamw(lr=1e-3) ema(0.998) cosine flip standard imagenet".split(),
    "worst(pgd, gama)",
)


def benchmark_texts() -> st.SearchStrategy[str]:
    return edited_yaml([path.read_text() for path in shipped_benchmarks().values()], WORDS)


def _benchmark(text: str) -> None:
    bench = read_benchmark(str(written("bench.yaml", text)))
    expect(bench.models != () and bench.attacks != () and bench.threats != (), "an empty benchmark")
    cells(bench)


def recipe_texts() -> st.SearchStrategy[str]:
    return edited_yaml([path.read_text() for path in shipped_recipes().values()], WORDS)


def _check_recipe(recipe: Recipe) -> None:
    build_parts(recipe)
    canonical = canonical_recipe(recipe)
    expect(canonical_recipe(canonical) == canonical, "the canonical recipe has another canonical form")
    expect(recipe_from_json(canonical.json()).key == canonical.key, "the stored recipe is another one")


def _recipe(text: str) -> None:
    _check_recipe(load_recipe(str(written("recipe.yaml", text))))


def _change(value: tuple[str, str]) -> None:
    _check_recipe(load_recipe("tiny-vit", [f"{value[0]}={value[1]}"]))


def change_texts() -> st.SearchStrategy[tuple[str, str]]:
    known = {key: str(value) for key, value in load_recipe("tiny-vit").json().items()}
    keys = st.one_of(st.sampled_from([*known, "published", "hooks"]), edited_texts(list(known)))
    return st.tuples(keys, edited_texts([*known.values(), *WORDS]))


@cache
def _zoo_parts() -> list[str]:
    """Small zoo files of the shipped one: three entries each with the families that they name."""
    content = yaml.safe_load(ZOO_FILE.read_text())
    families = content.get("families", {})
    parts = []
    for at in range(0, len(content["models"]), 12):
        models = content["models"][at : at + 3]
        named = {model["family"] for model in models if "family" in model}
        parts.append({"schema": 1, "families": {name: families[name] for name in named}, "models": models})
    return [yaml.safe_dump(part, sort_keys=False) for part in parts]


def _zoo(text: str) -> None:
    for id_, entry in read_zoo_file(written("zoo.yaml", text)).items():
        expect(entry.id == id_, f"{id_!r} is {entry.id!r}")
        for source in entry.weights.sources if entry.weights else ():
            expect(bool(source.shown), "a source without a text")
            if source.kind in ("github", "gdrive", "nextcloud"):
                expect(source.url.startswith("http"), source.url)


TARGETS = (
    Target("benchmarks", benchmark_texts, _benchmark),
    Target("recipes", recipe_texts, _recipe),
    Target("recipe changes", change_texts, _change),
    Target("zoo", lambda: edited_yaml(_zoo_parts(), WORDS), _zoo),
)
