"""Trained weights as a model of the user's zoo."""

from __future__ import annotations

from pathlib import Path

from vitattack.core.files import file_sha256
from vitattack.models.zoo.catalogue import zoo_entries
from vitattack.models.zoo.entry import ZooEntry
from vitattack.models.zoo.file_options import FileOptions
from vitattack.models.zoo.user_entries import About, add_entry, check_new_name
from vitattack.train.objectives.standard import Standard
from vitattack.train.recipe_file import recipe_from_json
from vitattack.train.recipe_parts import build_parts
from vitattack.train.run_folder import TrainedRun


def check_name_is_free(name: str, folder: Path) -> None:
    """Refuse a name that the zoo has already, unless it stands for the run in this very folder."""
    known = zoo_entries().get(name)
    sources = known.weights.sources if known and known.weights else ()
    if not any(source.kind == "file" and Path(source.where).is_relative_to(folder.absolute()) for source in sources):
        check_new_name(name)


def register_best(trained: TrainedRun, name: str) -> ZooEntry:
    """Add the best weights of a run to the user's zoo, as `vitattack models add` would; repeating it changes nothing."""
    known = zoo_entries().get(name)
    if known and known.weights and known.weights.sha256 == file_sha256(trained.best):
        return known
    recipe = recipe_from_json(trained.result["recipe"])
    is_standard = isinstance(build_parts(recipe).objective, Standard)
    options = FileOptions(
        arch=recipe.arch,
        arch_kwargs=dict(recipe.arch_kwargs),
        num_classes=int(trained.result["num_classes"]),
        normalize=recipe.normalize,
        adapter=trained.result["adapter"],
    )
    about = About(
        dataset=recipe.data.partition("[")[0].removesuffix("-train"),
        summary=f"trained with the recipe {recipe.name}, {recipe.epochs} epochs, seed {recipe.seed}",
        trained_for=None if is_standard else recipe.threat,
    )
    return add_entry(name, str(trained.best), options, about)
