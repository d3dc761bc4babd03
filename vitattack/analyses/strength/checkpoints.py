"""The checkpoints of a training run as victims, one for each epoch that was kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from vitattack.core.errors import UsageError, first_line
from vitattack.core.files import no_pipe
from vitattack.models.victim import Victim
from vitattack.train.loop.checkpoints import FORMAT, Checkpoints
from vitattack.train.loop.training_model import build_training_model
from vitattack.train.recipe import Recipe
from vitattack.train.recipe_file import recipe_from_json
from vitattack.train.run_folder import finished_run


class Checkpoint(NamedTuple):
    """A file with the weights after a number of epochs."""

    path: Path
    epoch: int


def checkpoints_of(folder: Path) -> tuple[Checkpoint, ...]:
    """The last checkpoint of every epoch of a finished run; those within an epoch are left out."""
    paths = Checkpoints(folder / "checkpoints").paths()
    found = [Checkpoint(path, epoch) for path in paths if (epoch := _epoch(path)) is not None]
    if not found:
        raise UsageError(
            f"'{folder}' holds no checkpoint of the end of an epoch: name the folder of a training run "
            "(vitattack train RECIPE --keep 100), or a model"
        )
    return tuple(found)


def victims_of(folder: Path, checkpoints: tuple[Checkpoint, ...]) -> Iterator[tuple[Checkpoint, Victim]]:
    """Each checkpoint as a victim, one at a time."""
    trained = finished_run(folder)
    if trained is None:
        raise UsageError(f"the training run in '{folder}' is not finished: run its command again, then analyze it")
    recipe: Recipe = replace(recipe_from_json(trained.result["recipe"]), init=None, precision="fp32")
    for checkpoint in checkpoints:
        model = build_training_model(recipe, int(trained.result["num_classes"]), torch.device("cpu"))
        try:
            model.load_state_dict(_content(checkpoint.path)["loop"]["victim"])
        except (KeyError, TypeError, RuntimeError) as error:
            raise UsageError(
                f"{checkpoint.path} does not fit its recipe ({first_line(error)}): remove it, or train again"
            ) from error
        model.name = f"{recipe.name}, epoch {checkpoint.epoch}"
        yield checkpoint, model


def _epoch(path: Path) -> int | None:
    """The number of whole epochs behind a checkpoint; None if it is from within one, or cannot be read."""
    try:
        epoch, at, _ = _content(path)["loop"]["position"]
    except (KeyError, TypeError, ValueError, UsageError):
        return None
    return int(epoch) if at == 0 and epoch > 0 else None


def _content(path: Path) -> dict[str, Any]:
    try:
        content = torch.load(no_pipe(path), map_location="cpu", weights_only=True)
    except Exception as error:  # of whatever a damaged file makes torch raise
        raise UsageError(f"{path} cannot be read ({first_line(error)}): remove it, or train again") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UsageError(f"{path} is of another version of vitattack: train again")
    return content
