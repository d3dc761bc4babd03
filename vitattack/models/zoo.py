"""A model by its text: a zoo id, `timm:arch.tag`, `hf-hub:owner/name`, or a checkpoint file with its architecture."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitattack._assets import EMBEDDED
from vitattack.attacks.catalogue import ATTACKS
from vitattack.errors import UsageError
from vitattack.models.catalogue import Entry, entries
from vitattack.models.small import SMALL
from vitattack.models.victim import Victim, probe
from vitattack.models.weights import SUFFIXES, load_strict, read_state
from vitattack.registry import did_you_mean

NORMALISERS: dict[str, tuple[tuple[float, ...], tuple[float, ...]] | None] = {
    "none": None,
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}


@dataclass(frozen=True)
class FileOptions:
    """What must be said about a checkpoint file, since the file does not say it."""

    arch: str | None = None
    arch_kwargs: dict[str, Any] = field(default_factory=dict)
    normalize: str | None = None
    weights_key: str | None = None
    strip_prefix: str | None = None


@dataclass(frozen=True)
class Loaded:
    """A victim ready for attack, the entry it came from if any, and what was resolved on the way."""

    victim: Victim
    entry: Entry | None
    record: dict[str, Any]


def load(text: str, device: torch.device, options: FileOptions = FileOptions()) -> Loaded:
    """The victim a text names: on the device, in fp32, eval mode, probed with one forward pass."""
    known = entries()
    given = [f.name for f in fields(options) if getattr(options, f.name) != getattr(FileOptions(), f.name)]
    if given and (text in known or text.startswith(("timm:", "hf-hub:"))):
        raise UsageError(f"--{given[0].replace('_', '-')} describes a checkpoint file, '{text}' is none: drop it")
    if text in known:
        loaded = _from_entry(known[text])
    elif text.startswith(("timm:", "hf-hub:")):
        loaded = _from_timm(text)
    elif text.endswith(SUFFIXES) or "/" in text or _is_file(text):
        loaded = _from_file(Path(text), options)
    elif text in ATTACKS:
        raise UsageError(f"'{text}' is an attack: name the model first, as in vitattack eval tiny-vit {text}")
    else:
        raise UsageError(
            did_you_mean("model", text, [*known, "timm:ARCH.TAG", "hf-hub:OWNER/NAME", "FILE.safetensors"])
        )
    loaded.victim.to(device).float().eval()
    probe(loaded.victim)
    return loaded


def build(arch: str, kwargs: dict[str, Any]) -> nn.Module:
    """An architecture with random weights: `small:NAME` is ours, anything else timm's."""
    try:
        if arch.startswith("small:"):
            return SMALL[arch.removeprefix("small:")](**kwargs)
        import timm

        if not timm.is_model(arch):
            raise UsageError(did_you_mean("architecture", arch, [*timm.list_models(), *(f"small:{n}" for n in SMALL)]))
        return timm.create_model(arch, pretrained=False, **kwargs)
    except UsageError:
        raise
    except Exception as error:  # architectures check their settings by whatever breaks first
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"architecture {arch} does not take these --arch-kwargs: {reason}") from error


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except OSError:  # a name too long
        return False


def _from_entry(entry: Entry) -> Loaded:
    if entry.weights is None:
        raise UsageError(f"the weights of '{entry.id}' are not public: only its published numbers are in the zoo")
    if entry.adapter is not None:
        raise UsageError(f"'{entry.id}' needs the adapter '{entry.adapter}', which this version does not have")
    if entry.weights.source != "embedded":
        return _from_timm(f"{entry.weights.source}:{entry.weights.file}")
    assert entry.weights.file is not None
    state = read_state(
        EMBEDDED / entry.weights.file,
        sha256=entry.weights.sha256,
        weights_key=entry.weights.weights_key,
        strip_prefix=entry.weights.strip_prefix,
    )
    model = build(entry.arch, entry.arch_kwargs)
    load_strict(
        model, {name: t.float() if t.is_floating_point() else t for name, t in state.items()}, entry.weights.file
    )
    victim = Victim(
        model,
        name=entry.id,
        num_classes=entry.num_classes,
        input_size=entry.input,
        transform=entry.transform,
        mean=entry.normalize["mean"] if entry.normalize else None,
        std=entry.normalize["std"] if entry.normalize else None,
    )
    return Loaded(victim, entry, {"source": "zoo", "arch": entry.arch, "licence": entry.licence})


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
        model: Any = timm.create_model(name if source == "timm" else text, pretrained=True)
    except Exception as error:  # the hub client, its transport and timm each raise their own kinds
        reason = (str(error).splitlines() or [""])[0][:100]
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
    if options.arch is None:
        raise UsageError(f"'{path.name}' does not say its architecture: add --arch, such as vit_small_patch16_224")
    if options.normalize is None:
        raise UsageError(
            f"'{path.name}' does not say how it normalises: add --normalize {'|'.join(NORMALISERS)} or MEAN,MEAN,MEAN/STD,STD,STD"
        )
    state = read_state(path, weights_key=options.weights_key, strip_prefix=options.strip_prefix)
    model = build(options.arch, options.arch_kwargs)
    load_strict(model, {name: t.float() if t.is_floating_point() else t for name, t in state.items()}, path.name)
    mean, std = _normaliser(options.normalize) or (None, None)
    victim = Victim(
        model,
        name=str(path),
        num_classes=_classes_of(model, options),
        input_size=_input_of(model, options),
        mean=mean,
        std=std,
    )
    record = {
        "source": "file",
        "arch": options.arch,
        "arch_kwargs": options.arch_kwargs,
        "normalize": options.normalize,
    }
    return Loaded(victim, None, record)


def _normaliser(text: str) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    if text in NORMALISERS:
        return NORMALISERS[text]
    try:
        mean, std = (tuple(float(v) for v in part.split(",")) for part in text.split("/"))
    except ValueError:
        mean, std = (), ()
    if len(mean) not in (1, 3) or len(std) != len(mean) or not all(map(math.isfinite, mean + std)) or min(std) <= 0:
        raise UsageError(
            f"normalize '{text}' is not understood: write {'|'.join(NORMALISERS)} or 0.5,0.5,0.5/0.5,0.5,0.5"
        )
    return mean, std


def _classes_of(model: nn.Module, options: FileOptions) -> int:
    classes = getattr(model, "num_classes", None) or options.arch_kwargs.get("num_classes")
    return int(classes) if classes else 1000


def _input_of(model: nn.Module, options: FileOptions) -> int:
    embed = getattr(model, "patch_embed", None)
    size = options.arch_kwargs.get("img_size") or getattr(embed, "img_size", None)
    if size is None:
        size = getattr(model, "pretrained_cfg", {}).get("input_size", (3, 32, 32))[-1]
    return int(size[0] if isinstance(size, tuple | list) else size)
