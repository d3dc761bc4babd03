"""Names, from Python: models and images loaded by name, lists of names, and names of one's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from fnmatch import fnmatchcase
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeVar

from vitattack.attacks.catalogue import ATTACKS, Entry
from vitattack.core.errors import UsageError
from vitattack.core.registry import Registry, did_you_mean
from vitattack.models.zoo.catalogue import search_zoo
from vitattack.models.zoo.file_options import FileOptions
from vitattack.threats.base import THREATS

if TYPE_CHECKING:
    from vitattack.data.dataset import DataSet
    from vitattack.models.victim import Victim

T = TypeVar("T")

# Everything that texts can name, by the word for it.
REGISTRIES: Mapping[str, str] = {
    "attack": "vitattack.attacks.catalogue:ATTACKS",
    "loss": "vitattack.attacks.losses.base:LOSSES",
    "step rule": "vitattack.attacks.gradient.steps:RULES",
    "schedule": "vitattack.attacks.gradient.steps:SCHEDULES",
    "start": "vitattack.attacks.gradient.starts:STARTS",
    "threat": "vitattack.threats.base:THREATS",
    "data set": "vitattack.data.catalogue:DATA_SETS",
    "analysis": "vitattack.analyses.catalogue:ANALYSES",
    "objective": "vitattack.train.recipe_part_names:OBJECTIVES",
    "hook": "vitattack.train.recipe_part_names:HOOKS",
    "augmentation": "vitattack.train.recipe_part_names:AUGMENTATIONS",
    "optimiser": "vitattack.train.recipe_part_names:OPTIMISERS",
    "learning rate": "vitattack.train.recipe_part_names:RATE_SCHEDULES",
    "architecture": "vitattack.models.architectures.build:ARCHITECTURES",
    "adapter": "vitattack.models.weights.adapters:ADAPTERS",
}


def load_model(text: str, *, device: str = "auto", **options: Any) -> Victim:
    """Load the model that a text names, as a module from pixels in [0,1] to logits, in fp32 and eval mode.

    The text is what `vitattack eval` takes: an entry of the zoo, `timm:ARCH.TAG`, `hf:OWNER/NAME`, a folder of Hugging Face
    transformers, `FILE.py:FUNCTION`, or a checkpoint file with the options of the command line as keywords, as in
    `load_model("mine.pt", arch="vit_small_patch16_224", normalize="imagenet")`. Its normalisation is inside; the size of
    its images is `model.size`. One forward is tried, so that a model that does not fit its weights is refused here.
    """
    from vitattack.core.runtime import resolve_device
    from vitattack.models.zoo.load import load_model as load

    unknown = sorted(options.keys() - FileOptions.__dataclass_fields__.keys())
    if unknown:
        raise UsageError(did_you_mean("option of a model", unknown[0], FileOptions.__dataclass_fields__))
    return load(text, resolve_device(device, text), FileOptions(**options)).victim


def load_data(
    text: str,
    *,
    limit: int | None = None,
    data_dir: str | Path | None = None,
    transform: str | None = None,
    model: Victim | None = None,
) -> DataSet:
    """Open the images that a text names, with their labels: `cifar10[:1000]`, `imagenet-c/fog/3`, a folder or an .npz file.

    Image files are scaled and cropped by `transform`, else as the set or, if one is given, the `model` asks for. The result is
    what `evaluate(..., data=)` takes; `x, y = data.read(data.rows)` reads all of it as tensors, `data.cut(64)` gives the rows
    of its batches.
    """
    from vitattack.evaluation.prepare import open_images, preprocessing

    return open_images(text, limit, None if data_dir is None else Path(data_dir), preprocessing(transform, model))


def list_models(text: str = "", *, data: str | None = None) -> list[str]:
    """Ids of the models of the zoo, your own among them: all, those that say `text`, or those that fit a pattern as `rb/*`.

    With `data` only those trained for a data set, such as "cifar10". What is known of one: `vitattack models info ID`.
    """
    return [entry.id for entry in search_zoo(text, data)]


def list_attacks(pattern: str = "*", *, threat: str | None = None) -> list[str]:
    """Names of the attacks, those of plug-ins among them, that fit a pattern such as `apgd*`.

    With `threat` only those defined for a kind of budget, such as "l2". What one does: `vitattack attacks info NAME`.
    """
    if threat is not None and threat not in THREATS:
        raise UsageError(did_you_mean("threat", threat, THREATS))
    return [n for n in ATTACKS if fnmatchcase(n, pattern) and (threat is None or threat in ATTACKS[n].kinds)]


def register(kind: str, name: str, **about: Any) -> Callable[[T], T]:
    """Give the decorated object a name for this process, to be written wherever texts name things of its kind.

    Kinds are attack, loss, step rule, schedule, start, threat, data set, analysis; architecture and adapter of checkpoints; of
    training objective, hook, augmentation, optimiser and learning rate. The factory of an attack takes its threat first, and
    is described by `paper`, `threats`, `needs_attention`, `black_box` and `draws`. Stored results are found again by the name:
    give changed code another one, or evaluate with `fresh=True`. Commands find the same objects in installed packages that
    expose them as entry points.
    """
    if kind not in REGISTRIES:
        raise UsageError(did_you_mean("kind of name", kind, REGISTRIES))
    known = {each.name for each in fields(Entry)} - {"factory"} if kind == "attack" else set()
    if unknown := sorted(about.keys() - known):
        raise UsageError(did_you_mean(f"description of {'an attack' if known else f'a {kind}'}", unknown[0], known))
    registry: Registry[Any] = resolve_name(REGISTRIES[kind])
    if name in registry:
        raise UsageError(f"the {kind} '{name}' exists already: choose another name")

    def decorate(target: Any) -> Any:
        registry.add(name, Entry(target, **{"paper": "none", "quick": name, **about}) if known else target)
        return target

    return decorate
