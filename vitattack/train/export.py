"""Trained weights as a model of the user's zoo."""

from __future__ import annotations

from vitattack.models.catalogue import Entry
from vitattack.models.user_zoo import About, add
from vitattack.models.zoo import FileOptions
from vitattack.train.objectives import Standard
from vitattack.train.parts import parts
from vitattack.train.recipe import of_json
from vitattack.train.run import Trained


def register(done: Trained, name: str) -> Entry:
    """The best weights of a run under a name, as `vitattack models add` writes it."""
    recipe = of_json(done.result["recipe"])
    plain = isinstance(parts(recipe).objective, Standard)
    options = FileOptions(
        arch=recipe.arch,
        arch_kwargs=dict(recipe.arch_kwargs),
        num_classes=int(done.result["num_classes"]),
        normalize=recipe.normalize,
        adapter=done.result["adapter"],
    )
    about = About(
        dataset=recipe.data.partition("[")[0].removesuffix("-train"),
        summary=f"trained with the recipe {recipe.name}, {recipe.epochs} epochs, seed {recipe.seed}",
        trained_for=None if plain else recipe.threat,
    )
    return add(name, str(done.best), options, about)
