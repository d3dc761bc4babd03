"""A model by its text: a zoo id, `timm:arch.tag`, `hf-hub:owner/name`, or a checkpoint file with its architecture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitattack.attacks.catalogue import ATTACKS
from vitattack.core.errors import UsageError, first_line
from vitattack.core.registry import close_matches, did_you_mean
from vitattack.models.architectures.build import build
from vitattack.models.normalise import NORMALISERS, Normaliser, normaliser
from vitattack.models.victim import Victim, probe
from vitattack.models.weights import fetch, hub
from vitattack.models.weights.adapters import Target, adapt
from vitattack.models.weights.sources import Weights
from vitattack.models.weights.state_dict import SUFFIXES, load_strict, read_state
from vitattack.models.zoo.entries import Entry, entries, weights_to_fetch
from vitattack.models.zoo.renamed import refuse_former_id

# Where training scripts put their tensors, for files of entries that say nothing about it.
CONTAINERS = ("model_state_dict", "state_dict", "model", ".")
PREFIXES = ("module.", "base_model.", "model.")


@dataclass(frozen=True)
class FileOptions:
    """What must be said about a checkpoint file, since the file does not say it."""

    arch: str | None = None
    arch_kwargs: dict[str, Any] = field(default_factory=dict)
    num_classes: int | None = None
    normalize: str | None = None
    weights_key: str | None = None
    strip_prefix: str | None = None
    adapter: str | None = None
    like: str | None = None  # a zoo entry that says all of this
    unsafe_pickle: bool = False  # the one word that is also for zoo entries


@dataclass(frozen=True)
class Loaded:
    """A victim ready for attack, the entry it came from if any, and what was resolved on the way."""

    victim: Victim
    entry: Entry | None
    record: dict[str, Any]


def load(text: str, device: torch.device, options: FileOptions = FileOptions()) -> Loaded:
    """The victim a text names: on the device, in fp32, eval mode, probed with one forward pass."""
    known = entries()
    refuse_former_id(text, known)
    given = [f.name for f in fields(options) if getattr(options, f.name) != getattr(FileOptions(), f.name)]
    if text in known and options.unsafe_pickle:
        given.remove("unsafe_pickle")
    if given and (text in known or text.startswith(("timm:", "hf-hub:"))):
        raise UsageError(f"--{given[0].replace('_', '-')} describes a checkpoint file, '{text}' is none: drop it")
    if text in known:
        loaded = from_entry(known[text], unsafe_pickle=options.unsafe_pickle)
    elif text.startswith(("timm:", "hf-hub:")):
        loaded = _from_timm(text)
    elif text.endswith(SUFFIXES) or ("/" in text and text.partition("/")[0] not in _shelves(known)) or _is_file(text):
        loaded = _from_file(Path(text), options)
    elif text in ATTACKS:
        raise UsageError(f"'{text}' is an attack: name the model first, as in vitattack eval tiny-vit {text}")
    else:
        raise UsageError(_unknown(text, [*known, "timm:ARCH.TAG", "hf-hub:OWNER/NAME", "FILE.safetensors"]))
    loaded.victim.to(device).float().eval()
    probe(loaded.victim)
    return loaded


def _unknown(text: str, known: Sequence[str]) -> str:
    """A word that is no model and near none may be an attack with a typo: both stand in one list on a command line."""
    if not close_matches(text, known) and close_matches(text, ATTACKS):
        return did_you_mean("model or attack", text, ATTACKS)
    return did_you_mean("model", text, known)


def _shelves(known: Iterable[str]) -> set[str]:
    """What stands before the slash of an id, such as rb and ares."""
    return {name.partition("/")[0] for name in known if "/" in name}


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except OSError:  # a name too long
        return False


def from_entry(entry: Entry, *, unsafe_pickle: bool = False) -> Loaded:
    """The victim of a zoo entry, its weights fetched, adapted and loaded strictly."""
    weights = weights_to_fetch(entry)
    if entry.arch is None:
        raise UsageError(f"'{entry.id}' cannot be built by this version ({entry.notes}): attack another model")
    state = fetch.state(weights, name=entry.id, unsafe=unsafe_pickle)
    victim = victim_of(entry)
    _fill(victim.model, state, entry.adapter, declared(entry), entry.id)
    record = {
        "source": "zoo",
        "arch": entry.arch,
        "arch_kwargs": entry.arch_kwargs,
        "adapter": list(entry.adapter),
        "weights": fetch.origin(weights, entry.id),
        "licence": entry.licence,
        "unverified": list(entry.unverified),
    }
    return Loaded(victim, entry, record)


def victim_of(entry: Entry) -> Victim:
    """The entry's model with random weights, normalisation inside; on the meta device it costs nothing."""
    if entry.arch is None:
        raise UsageError(f"'{entry.id}' cannot be built by this version ({entry.notes}): attack another model")
    mean, std = declared(entry) or (None, None)
    return Victim(
        build(entry.arch, entry.arch_kwargs),
        name=entry.id,
        num_classes=entry.num_classes,
        input_size=entry.input,
        transform=entry.transform,
        mean=mean,
        std=std,
    )


def declared(entry: Entry) -> Normaliser | None:
    """The normalisation of an entry as mean and standard deviation."""
    return (tuple(entry.normalize["mean"]), tuple(entry.normalize["std"])) if entry.normalize else None


def _fill(
    model: nn.Module, state: Mapping[str, Tensor], names: tuple[str, ...], normalize: Normaliser | None, what: str
) -> None:
    floats = {name: t.float() if t.is_floating_point() else t for name, t in state.items()}
    load_strict(model, adapt(floats, Target(model, normalize), names), what)


def _from_timm(text: str) -> Loaded:
    import timm
    from timm.models import split_model_name_tag

    source, _, name = text.partition(":")
    if source == "timm":
        arch, tag = split_model_name_tag(name)
        if not timm.is_model(arch):
            raise UsageError(did_you_mean("architecture", arch, timm.list_models()))
        tags = [n.partition(".")[2] for n in timm.list_pretrained(f"{arch}.*")]
        if tag not in tags:
            what = f"'{text}' names no weights" if not tag else f"'{arch}' has no weights '{tag}'"
            raise UsageError(f"{what}: write timm:{arch}.TAG with one of {', '.join(tags) or 'none (it has none)'}")
    try:
        with hub.offline_if_asked():
            model: Any = timm.create_model(name if source == "timm" else text, pretrained=True)
    except Exception as error:  # the hub client, its transport and timm each raise their own kinds
        reason = first_line(error)[:100]
        raise UsageError(
            f"cannot fetch {text} ({type(error).__name__}: {reason}): connect and run again, or give a local file"
        ) from error
    cfg: dict[str, Any] = dict(model.pretrained_cfg)
    size, crop = cfg["input_size"][-1], cfg.get("crop_pct") or 1.0
    victim = Victim(
        model,
        name=text,
        num_classes=model.num_classes,
        input_size=size,
        mean=cfg["mean"],
        std=cfg["std"],
        transform=f"{'bicubic' if cfg.get('interpolation') == 'bicubic' else 'bilinear'}{math.floor(size / crop)}crop{size}",
    )
    kept = ("architecture", "tag", "hf_hub_id", "input_size", "mean", "std", "interpolation", "crop_pct", "license")
    return Loaded(victim, None, {"source": source, "cfg": {k: cfg[k] for k in kept if cfg.get(k) is not None}})


def _from_file(path: Path, options: FileOptions) -> Loaded:
    if not _is_file(str(path)):
        raise UsageError(f"weights file '{str(path)[:80]}' does not exist: check the path, or name a model of the zoo")
    if options.like is not None:
        return _like(path, options.like, options)
    if options.arch is None:
        raise UsageError(f"'{path.name}' does not say its architecture: add --arch, such as vit_small_patch16_224")
    if options.normalize is None:
        raise UsageError(
            f"'{path.name}' does not say how it normalises: add --normalize {'|'.join(NORMALISERS)} or MEAN,MEAN,MEAN/STD,STD,STD"
        )
    normalize, kwargs = normaliser(options.normalize), with_classes(options)
    state = read_state(
        path,
        weights_key=options.weights_key,
        strip_prefix=options.strip_prefix,
        unsafe=options.unsafe_pickle,
    )
    model = build(options.arch, kwargs)
    _fill(model, state, (options.adapter,) if options.adapter else (), normalize, path.name)
    mean, std = normalize or (None, None)
    victim = Victim(
        model,
        name=str(path),
        num_classes=classes_of(model, kwargs),
        input_size=input_of(model, kwargs),
        mean=mean,
        std=std,
    )
    record = {
        "source": "file",
        "arch": options.arch,
        "arch_kwargs": kwargs,
        "adapter": options.adapter,
        "normalize": options.normalize,
    }
    return Loaded(victim, None, record)


def _like(path: Path, name: str, options: FileOptions) -> Loaded:
    """A file fetched by hand, read as the entry says; a sha256 of the entry holds for it, too."""
    if name not in entries():
        refuse_former_id(name, entries())
        raise UsageError(did_you_mean("model", name, entries()))
    if options != FileOptions(like=name, unsafe_pickle=options.unsafe_pickle):
        raise UsageError(f"--like {name} says all there is to say about '{path.name}': drop the other options")
    entry = entries()[name]
    weights = entry.weights or Weights((), weights_key=CONTAINERS, strip_prefix=PREFIXES)
    here = replace(weights, mirrors=(f"file:{path}",))
    return from_entry(replace(entry, id=str(path), weights=here), unsafe_pickle=options.unsafe_pickle)


def with_classes(options: FileOptions) -> dict[str, Any]:
    """The arguments of the architecture, --num-classes among them."""
    said = options.arch_kwargs.get("num_classes", options.num_classes)
    if options.num_classes is None:
        return options.arch_kwargs
    if said != options.num_classes:
        raise UsageError(f"--num-classes says {options.num_classes}, --arch-kwargs {said}: give one of them")
    return {**options.arch_kwargs, "num_classes": options.num_classes}


def classes_of(model: nn.Module, kwargs: Mapping[str, Any]) -> int:
    """How many classes a model has, from itself or its arguments."""
    classes = getattr(model, "num_classes", None) or kwargs.get("num_classes")
    return int(classes) if classes else 1000


def input_of(model: nn.Module, kwargs: Mapping[str, Any]) -> int:
    """The side of the images a model takes, from itself or its arguments."""
    embed = getattr(model, "patch_embed", None)
    size = kwargs.get("img_size") or getattr(embed, "img_size", None)
    if size is None:
        size = getattr(model, "pretrained_cfg", {}).get("input_size", (3, 32, 32))[-1]
    return int(size[0] if isinstance(size, tuple | list) else size)
