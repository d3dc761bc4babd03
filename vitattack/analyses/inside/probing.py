"""Models opened and probed: their attention layers, and the blocks whose outputs are compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vitattack.analyses.run import AnalysisRun
from vitattack.core.errors import UsageError
from vitattack.evaluation.batch_runner import read_batch
from vitattack.evaluation.prepare import Prepared
from vitattack.models.attention.attention_map import AttentionMap
from vitattack.models.attention.features import block_features, tapped_modules
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.blocks.convolutional import adding_modules
from vitattack.models.victim import frozen


class Probed(NamedTuple):
    """A model by the name that tables show, with its images and its attention layers."""

    name: str
    prepared: Prepared
    layers: AttentionMap
    first: Tensor  # two of the images


def open_all(run: AnalysisRun) -> list[Probed]:
    """All models of a run, probed before anything is computed, so that what cannot be analysed is refused at once."""
    found = []
    for name, model in run.named:
        prepared = run.open(model)
        x, _, _ = read_batch(prepared.images, prepared.images.rows[:2], prepared.victim, prepared.device)
        found.append(Probed(name, prepared, attention_layers(prepared.victim, x), x))
    return found


def compared_blocks(probed: Probed) -> list[str]:
    """The blocks around attention; of a model without attention, its residual blocks."""
    names = tapped_modules(probed.layers, "block") or [*adding_modules(probed.prepared.victim, probed.first)]
    if not names:
        raise UsageError(
            f"model '{probed.name}' has neither attention nor residual blocks that I can see, so there are no blocks to compare"
        )
    return names


@torch.no_grad()
def outputs(probed: Probed, names: Sequence[str], x: Tensor) -> list[Tensor]:
    """What each block returns for a batch; it is refused if that is not a row per image."""
    victim = probed.prepared.victim
    with frozen(victim):
        found, _ = block_features(victim, names, "block", lambda: victim(x))
    wrong = [name for name, feature in zip(names, found, strict=True) if len(feature) != len(x)]
    if wrong:
        raise UsageError(
            f"block '{wrong[0]}' of model '{probed.name}' does not return a row per image, so it cannot be compared"
        )
    return found
