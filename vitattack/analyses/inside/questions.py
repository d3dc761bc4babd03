"""Questions about the inside of models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, get_args

from vitattack.analyses.base import Analysis, at_least
from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.models.blocks.names import Part

UNDERSTANDING = "Bhojanapalli et al. 2021"


@dataclass(frozen=True)
class Lesion(Analysis):
    """Accuracy without residual branches: attention, MLP or whole blocks, one by one and several at random.

    The first block is never among those drawn at random. Branches are found by following the stream through one forward.
    """

    work: ClassVar[str] = "vitattack.analyses.inside.lesion:lesion"
    paper: ClassVar[str] = f"{UNDERSTANDING}, Fig. 8"

    parts: tuple[str, ...] = ("attention", "mlp", "block")
    draws: int = 25  # of each number of blocks; 0 for single lesions alone
    counts: tuple[int, ...] = ()  # how many blocks are drawn; without any, all numbers from 1 up

    def __post_init__(self) -> None:
        for part in self.parts:
            if part not in get_args(Part):
                raise UsageError(did_you_mean("part of a block", part, get_args(Part)))
        at_least("lesion", "draws", self.draws, 0)
        for count in self.counts:
            at_least("lesion", "counts", count, 1)


@dataclass(frozen=True)
class Correlation(Analysis):
    """|Pearson correlation| of the outputs of every two blocks, over all tokens and over the class token."""

    work: ClassVar[str] = "vitattack.analyses.inside.correlation:correlate"
    paper: ClassVar[str] = f"{UNDERSTANDING}, Fig. 7"


@dataclass(frozen=True)
class Cka(Analysis):
    """Centred kernel alignment of blocks, within each model and across every two, by unbiased minibatches.

    Linear kernels; HSIC is estimated without bias in minibatches, and averaged over them before it is divided. It compares
    features of any shape, so that it takes convolutional networks as well.
    """

    work: ClassVar[str] = "vitattack.analyses.inside.cka:align"
    paper: ClassVar[str] = f"{UNDERSTANDING}, Fig. 33; Kornblith et al. 2019"

    minibatch: int = 256  # images whose features are in memory at once

    def __post_init__(self) -> None:
        at_least("cka", "minibatch", self.minibatch, 4)


@dataclass(frozen=True)
class RestrictedAttention(Analysis):
    """Accuracy if patches attend to near patches only, to as many at random, or to the class token only."""

    work: ClassVar[str] = "vitattack.analyses.inside.restricted:restrict"
    paper: ClassVar[str] = f"{UNDERSTANDING}, Fig. 9"

    distances: tuple[int, ...] = ()  # in patches, along rows and columns; without any, all there are

    def __post_init__(self) -> None:
        for distance in self.distances:
            at_least("restricted", "distances", distance, 0)


@dataclass(frozen=True)
class MapQuestion(Analysis):
    """What maps over an image have in common: an attack whose images stand beside the clean ones, pictures, and masks."""

    threat: ClassVar[str | None] = "linf:8/255"

    attack: str = "pgd(steps=20)"  # none for clean images alone
    pictures: int = 6  # the first images, drawn with their maps
    masks: str | None = None  # FILE.npy of (N, height, width): where the object is, by row of the data set

    def __post_init__(self) -> None:
        at_least("maps", "pictures", self.pictures, 0)


@dataclass(frozen=True)
class EigenCam(MapQuestion):
    """EigenCAM of the last block: how far the map spreads, clean and under attack, and its overlap with masks.

    The activations are those the last block normalises first, as is usual for transformers; of a convolutional network,
    what its last residual block returns.
    """

    work: ClassVar[str] = "vitattack.analyses.inside.maps:eigencam_maps"
    paper: ClassVar[str] = "ViTs beat WideResNets, Fig. 3; Muhammad and Yeasin 2020"


@dataclass(frozen=True)
class AttentionMaps(MapQuestion):
    """Attention of the class token to patches, block by block: entropy, spread, clean and under attack.

    Mean over heads. Without a class token it is the attention that patches receive, as a mean over all patches.
    """

    work: ClassVar[str] = "vitattack.analyses.inside.maps:attention_maps"
    paper: ClassVar[str] = "Li and Xu 2023 (TORA-ViT)"


@dataclass(frozen=True)
class Gates(MapQuestion):
    """Where the gates of a TORA-ViT give weight to either adapter, block by block: entropy, spread, weight.

    A map of an adapter is the weight that its features of a place are given, a mean over all queries. Over the two
    adapters the weights of a place sum to one.
    """

    work: ClassVar[str] = "vitattack.analyses.inside.gates:gate_maps"
    paper: ClassVar[str] = "Li and Xu 2023 (TORA-ViT)"

    attack: str = "none"
