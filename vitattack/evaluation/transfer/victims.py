"""The models of a transfer study, loaded once, each with the same images at its own input size."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from vitattack.attacks.black_box.transfer import resized
from vitattack.attacks.catalogue import ATTACKS
from vitattack.core.errors import UsageError
from vitattack.data import DataSet, match_labels, restrict_to_classes
from vitattack.data.entry import Source
from vitattack.data.transform import Preprocessing
from vitattack.evaluation.prepare import images_of
from vitattack.evaluation.reuse import unhashed
from vitattack.evaluation.setup import Setup
from vitattack.models.digest import fingerprint
from vitattack.models.victim import Victim, as_victim, in_words
from vitattack.models.zoo.file_options import FileOptions
from vitattack.models.zoo.load import load_model
from vitattack.models.zoo.loaded import LoadedModel
from vitattack.models.zoo.names import check_model_name, options_by_model
from vitattack.threats.lp import LpBall

Model = str | nn.Module


class _Resized:
    """The images of another source at a model's own size."""

    def __init__(self, source: Source, size: tuple[int, int]) -> None:
        self.num_classes = source.num_classes
        self._source, self._size = source, size

    def __len__(self) -> int:
        return len(self._source)

    def read(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        x, y = self._source.read(rows)
        return resized(x, *self._size), y

    def digest(self, rows: Sequence[int]) -> str:
        return hashlib.sha256(f"{self._source.digest(rows)}|{in_words(self._size)} px".encode()).hexdigest()


@dataclass(frozen=True)
class StudiedModel:
    """A victim with the images at its input size, and the digests of both."""

    loaded: LoadedModel
    data: DataSet
    weights: str
    pixels: str
    lasting: bool = True  # whether the digest covers all of the model, so that stored records may be found by it

    @property
    def victim(self) -> Victim:
        return self.loaded.victim

    @property
    def name(self) -> str:
        return self.victim.name

    @property
    def size(self) -> tuple[int, int]:
        return self.victim.size

    @property
    def rescaled(self) -> bool:
        """Whether the images were resized for this model."""
        return isinstance(self.data.source, _Resized)


def assemble(
    models: Sequence[Model],
    place: torch.device,
    setup: Setup,
) -> tuple[dict[str | int, StudiedModel], DataSet]:
    """Load every model once, with the images at its input size; also returns the images as stored."""
    texts = list(dict.fromkeys(model for model in models if isinstance(model, str)))
    stated = options_by_model(texts, setup.options or FileOptions())
    for text in texts:
        check_model_name(text, stated[text], attacks=ATTACKS)
    loaded: dict[str | int, LoadedModel] = {text: load_model(text, place, stated[text]) for text in texts}
    known = [one.victim for one in loaded.values()] + [model for model in models if isinstance(model, Victim)]
    several = next((victim for victim in known if victim.any_size), None)
    if several is not None:
        raise UsageError(
            f"'{several.name}' takes images of any size, and between models they are scaled: name the size of its images, "
            "as --input-size 224"
        )
    squares = [victim.input_size for victim in known if victim.input_height is None]
    largest = max(squares) if squares and len(squares) == len(known) else None
    base = images_of(setup, Preprocessing(setup.transform, _common_transform(known), largest))
    image, _ = base.read(base.rows[:1])
    for model in models:
        if not isinstance(model, str) and id(model) not in loaded:
            loaded[id(model)] = LoadedModel(as_victim(model, image.to(place)).to(place), None, {"source": "module"})
    loaded = {
        key: replace(one, victim=restrict_to_classes(match_labels(one.victim, one.labels, base), base.classes))
        for key, one in loaded.items()
    }
    _check_classes([one.victim for one in loaded.values()], base)
    found: dict[str | int, StudiedModel] = {}
    for key, one in loaded.items():
        if any(one.victim.name == other.name for other in found.values()):
            raise UsageError(f"two models are called '{one.victim.name}': give their victims names of their own")
        images = at_size(base, one.victim.size)
        mark = fingerprint(one.victim)
        one = replace(one, record=one.record | unhashed(mark.unknown))
        found[key] = StudiedModel(one, images, mark.digest, images.digest(), lasting=not mark.unknown)
    return found, base


def _common_transform(victims: Sequence[Victim]) -> str:
    """The transform that all models share; if they differ, the whole image resized to the largest input size."""
    kinds = {(victim.transform, victim.size) for victim in victims}
    if len(kinds) < 2:
        return next((transform for transform, _ in kinds), "none")
    height, width = max((size for _, size in kinds), key=lambda size: (size[0] * size[1], size))
    return f"resize{height}x{width}"


def at_size(data: DataSet, size: tuple[int, int]) -> DataSet:
    image, _ = data.read(data.rows[:1])
    if tuple(image.shape[-2:]) == size:
        return data
    return replace(data, text=f"{data.text} at {in_words(size)} px", source=_Resized(data.source, size))


def check_distinct(models: Sequence[Model], to: Sequence[Model]) -> None:
    if not models:
        raise UsageError("no source is named: write vitattack transfer tiny-vit tiny-vit-standard pgd")
    for several in (models, to):
        keys = [key_of(model) for model in several]
        for model, key in zip(several, keys, strict=True):
            if keys.count(key) > 1:
                name = (
                    model
                    if isinstance(model, str)
                    else model.name
                    if isinstance(model, Victim)
                    else type(model).__name__
                )
                raise UsageError(f"'{name}' is named twice: name each model once")


def _check_classes(victims: Sequence[Victim], data: DataSet) -> None:
    first = victims[0]
    for victim in victims[1:]:
        if victim.num_classes != first.num_classes:
            raise UsageError(
                f"'{first.name}' has {first.num_classes} classes, '{victim.name}' has {victim.num_classes}: "
                "choose models trained for the same ones"
            )
    if data.num_classes is not None and data.num_classes != first.num_classes:
        raise UsageError(
            f"'{first.name}' has {first.num_classes} classes, '{data.text}' has {data.num_classes}: "
            "choose data the models were trained for"
        )


def size_doubts(models: Sequence[StudiedModel], ball: LpBall) -> list[str]:
    found = [f"images are resized to {in_words(model.size)} px for {model.name}" for model in models if model.rescaled]
    if ball.norm == "l2" and len({model.size for model in models}) > 1:
        found.append("input sizes differ, and an l2 budget allows another change per pixel at another size")
    return found


def key_of(model: Model) -> str | int:
    return model if isinstance(model, str) else id(model)
