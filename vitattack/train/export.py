"""Trained weights as a model of the user's zoo."""

from __future__ import annotations

from pathlib import Path

from vitattack.core.files import file_sha256
from vitattack.models.zoo.entries import Entry, entries
from vitattack.models.zoo.load import FileOptions
from vitattack.models.zoo.user_entries import About, add, check_name
from vitattack.train.objectives.objectives import Standard
from vitattack.train.parts import parts
from vitattack.train.recipe import of_json
from vitattack.train.train import Trained


def check_free(name: str, folder: Path) -> None:
    """Refuses a name before the run in `folder` that wants it, unless it is this run that has it."""
    known = entries().get(name)
    own = known.weights.sources if known and known.weights else ()
    if not any(source.kind == "file" and Path(source.where).is_relative_to(folder.absolute()) for source in own):
        check_name(name)


def register(done: Trained, name: str) -> Entry:
    """The best weights of a run under a name, as `vitattack models add` writes it; done once, it is done."""
    known = entries().get(name)
    if known and known.weights and known.weights.sha256 == file_sha256(done.best):
        return known
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
