"""Recipes from files and from the command line; every mistake is named in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitattack.core.errors import UsageError
from vitattack.train.courses import load_recipe
from vitattack.train.recipe import Recipe
from vitattack.train.recipe_file import recipe_from_json
from vitattack.train.recipe_parts import canonical_recipe


def written(folder: Path, text: str, name: str = "mine") -> str:
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return str(path)


def test_a_file_its_base_and_changes_are_laid_over_each_other(tmp_path: Path) -> None:
    written(tmp_path, "objective: trades\nepochs: 7\nhooks: [ema]\nsummary: below\n", "under")
    path = written(tmp_path, "base: under\nepochs: 8\nsynthetic: npz:a.npz\nshare: 7e-1\n")
    recipe = load_recipe(path, ["hooks=[ema(0.9, warmup=0), awp]", "arch_kwargs={depth: 2}", "seed=3", "init=null"])
    assert (recipe.name, recipe.objective, recipe.epochs, recipe.share, recipe.seed) == ("mine", "trades", 8, 0.7, 3)
    assert recipe.hooks == ("ema(0.9, warmup=0)", "awp") and recipe.arch_kwargs == {"depth": 2}
    assert recipe_from_json(recipe.json()) == recipe


def test_the_keys_of_a_second_file_go_over_those_of_the_recipe(tmp_path: Path) -> None:
    path = written(tmp_path, "epochs: 8\nseed: 2\n")
    recipe = load_recipe("aas-at", [path, "seed=3"])
    assert (recipe.name, recipe.epochs, recipe.seed, recipe.hooks) == ("aas-at", 8, 3, load_recipe("aas-at").hooks)
    with pytest.raises(UsageError, match="has a base of its own"):
        load_recipe("aas-at", [written(tmp_path, "base: trades\n", "other")])


def test_equal_recipes_have_one_key_whatever_they_are_called() -> None:
    a = canonical_recipe(
        Recipe("a", objective="trades(beta=6)", hooks=("ema(decay=0.995)",), threat="linf:0.03137254901960784")
    )
    b = canonical_recipe(Recipe("b", objective="trades", hooks=("ema",), summary="words", cost="none"))
    c = canonical_recipe(Recipe("b", objective="trades(beta=5)", hooks=("ema",)))
    assert a.key == b.key != c.key


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("objectiv: trades", "unknown key 'objectiv': did you mean objective"),
        ("epochs: many", "epochs is a whole number, not 'many'"),
        ("epochs: true", "epochs is a whole number"),
        ("epochs: -1", "epochs is at least 0"),
        ("hooks: {ema: 1}", "hooks is a list of texts"),
        ("hooks: [1]", "hooks is a list of texts"),
        ("precision: fp8", "precision is fp32 or bf16, not 'fp8'"),
        ("share: 1.5", "share is from 0 to below 1"),
        ("- a\n- b", "is not a recipe"),
        ("a: [", "is not readable YAML"),
        ("a: !!python/object/apply:os.system [x]", "is refused: write the plain value"),
        ("schema: 2", "this one reads schema: 1"),
        ("base: mine", "chains of them are short"),
        ("base: nothing", "unknown recipe 'nothing'"),
        ("name: ../../x", "cannot name a folder"),
        ("seed: -3", "seed is a whole number from 0 on"),
    ],
)
def test_mistakes_in_a_file_are_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load_recipe(written(tmp_path, text))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("epochs", "write key=value"),
        ("epoch=3", "did you mean epochs"),
        ("hooks=[emma]", "unknown hook 'emma': did you mean ema"),
        ("objective=trades(beta=x)", "objective: .*takes a number"),
        ("objective=trades(eps=1)", "the budget is the threat's"),
        ("augment=cropp", "did you mean crop"),
        ("optimiser=adam", "did you mean adamw"),
        ("rate=cosin", "did you mean cosine"),
    ],
)
def test_mistakes_in_a_change_are_named(tmp_path: Path, change: str, words: str) -> None:
    path = written(tmp_path, "epochs: 1")
    with pytest.raises(UsageError, match=words):
        canonical_recipe(load_recipe(path, [change]))


def test_a_file_that_is_no_text_or_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "b.yaml").write_text("#" * 300_000)
    for name, words in (("a", "it is not text"), ("b", "more than any recipe"), ("c", "No such file")):
        with pytest.raises(UsageError, match=words):
            load_recipe(str(tmp_path / f"{name}.yaml"))


def test_a_small_file_of_nested_aliases_is_refused(tmp_path: Path) -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    assert len(bomb) < 1024
    with pytest.raises(UsageError, match=r"bomb\.yaml:\d+: the aliases of this file stand for more than") as error:
        load_recipe(written(tmp_path, bomb, "bomb"))
    assert "\n" not in str(error.value)
    (tmp_path / "over.yaml").write_text(bomb)
    with pytest.raises(UsageError, match="the aliases of this file"):
        load_recipe(written(tmp_path, "epochs: 1"), [str(tmp_path / "over.yaml")])


def test_a_seed_that_no_generator_takes_is_refused() -> None:
    for seed in (-1, 2**63, 2**64):
        with pytest.raises(UsageError, match=f"recipe 'a': .*seed {seed} is out of range"):
            Recipe("a", seed=seed)


def test_a_base_may_lie_in_another_folder(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "short.yaml").write_text("base: tiny-vit\nepochs: 3\n")
    (tmp_path / "own.yaml").write_text("base: parts/short\n")
    assert load_recipe(str(tmp_path / "own.yaml")).epochs == 3
    (tmp_path / "own.yaml").write_text("base: /\n")
    with pytest.raises(UsageError, match="unknown recipe '/'"):
        load_recipe(str(tmp_path / "own.yaml"))
    (tmp_path / "own.yaml").write_text(f"base: {'a' * 5000}\n")
    with pytest.raises(UsageError, match="unknown recipe 'aaa"):
        load_recipe(str(tmp_path / "own.yaml"))
