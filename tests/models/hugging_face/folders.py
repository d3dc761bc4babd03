"""Folders of small transformers models with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from vitattack.text.class_lists import CIFAR10

SHUFFLED = [CIFAR10[(7 * number + 3) % 10] for number in range(10)]
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def save_vit(
    folder: Path, cls: str = "ViTForImageClassification", *, names: list[str] | None = None, **processing: Any
) -> Any:
    """A random model of a class of the family, saved with its image processor; returns the model."""
    transformers = pytest.importorskip("transformers")
    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)
    kind = getattr(transformers, cls)
    labels = dict(enumerate(names)) if names else {n: f"LABEL_{n}" for n in range(10)}
    config = kind.config_class(**SIZES, image_size=32, patch_size=8, id2label=labels)
    model = kind(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(std=1.4 * parameter[0].numel() ** -0.5)
    model.save_pretrained(folder)
    how = {"size": {"height": 32, "width": 32}, **processing}
    transformers.ViTImageProcessor(**how).save_pretrained(folder)
    return model


def changed(folder: Path, **values: Any) -> None:
    """Change entries of a folder's config.json; None removes one."""
    path = folder / "config.json"
    content = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
