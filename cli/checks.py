"""Checks of a command's words that need no torch: misspelt names and missing files are answered at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitattack.models.zoo.file_options import FileOptions
    from vitattack.text.syntax import AttackSyntax


def check_models(models: Sequence[str], options: FileOptions) -> None:
    """Refuse unknown models, missing checkpoint files, and file options that fit none of the models."""
    from vitattack.attacks.catalogue import ATTACKS
    from vitattack.models.zoo.names import check_model_name, options_by_model

    # a single model is handed all options, so that its own check names the one that does not fit
    for name, own in ({models[0]: options} if len(models) == 1 else options_by_model(models, options)).items():
        check_model_name(name, own, attacks=ATTACKS)


def code_as_model(model: str, words: tuple[str, ...], given: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    """The model and the words behind it; without a checkpoint file, the code of --model-from is the model."""
    from vitattack.core.words import names_a_file
    from vitattack.evaluation.setup import DEFAULT_MODEL
    from vitattack.models.weights.sources import SUFFIXES

    if given["model_from"] is None or names_a_file(model) or model.endswith(SUFFIXES):
        return model, words
    code, given["model_from"] = given["model_from"], None
    return code, words if model == DEFAULT_MODEL else (model, *words)


def check_attacks(texts: Sequence[str]) -> tuple[AttackSyntax, ...]:
    """Parse attack texts, and refuse names of attacks that do not exist."""
    from vitattack.attacks.catalogue import check_attack_names

    return tuple(check_attack_names(text) for text in texts)


def check_images(data: str, data_dir: str | None, transform: str | None) -> None:
    """Refuse unknown data sets and transforms, rows out of range, and missing files."""
    from vitattack.data.request import check_data
    from vitattack.evaluation.setup import Setup

    folder = Path(data_dir) if data_dir else None
    check_data(data, data_dir=folder)
    Setup(data=data, transform=transform)  # before the transform is parsed: not all data take one
    check_data(data, data_dir=folder, transform=transform)


def check_threat(text: str) -> int:
    """Refuse unknown threats; returns the number of budgets."""
    from vitattack.threats.base import parse_threats

    return len(parse_threats(text))
