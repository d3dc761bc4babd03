"""Loading of a victim by name: a zoo id, `timm:ARCH.TAG`, `hf:OWNER/NAME`, a folder, or a checkpoint file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vitattack.core.errors import UsageError, first_line
from vitattack.core.registry import did_you_mean
from vitattack.core.words import printable, without_secrets
from vitattack.models.architectures.build import build_architecture
from vitattack.models.clip.zero_shot import finish
from vitattack.models.hugging_face.folder import ModelFolder, read_model_folder
from vitattack.models.hugging_face.load import FolderOptions, load_folder
from vitattack.models.hugging_face.repository import fetch_model
from vitattack.models.normalise import Normaliser
from vitattack.models.timm_config import timm_transform
from vitattack.models.victim import Victim, check_forward
from vitattack.models.weights import hub
from vitattack.models.weights.fetch import fetch_state, weights_origin
from vitattack.models.weights.sources import WeightSources
from vitattack.models.zoo.catalogue import zoo_entry
from vitattack.models.zoo.entry import ZooEntry, weights_to_fetch
from vitattack.models.zoo.file_options import FileOptions
from vitattack.models.zoo.from_file import load_code, load_file, load_state
from vitattack.models.zoo.loaded import LoadedModel
from vitattack.models.zoo.names import ATTENTION, check_buildable, check_model_name
from vitattack.models.zoo.other_texts import with_texts

# Where training scripts usually keep their tensors, for files of entries without declared weights.
CONTAINERS = ("model_state_dict", "state_dict", "model", ".")
PREFIXES = ("module.", "base_model.", "model.")


def load_model(text: str, device: torch.device, options: FileOptions = FileOptions()) -> LoadedModel:
    """Load the victim a text names: on the device, in fp32 and eval mode, tried with one forward pass."""
    kind = check_model_name(text, options)
    if kind == "zoo":
        loaded = load_entry(with_texts(zoo_entry(text), options.arch_kwargs), unsafe_pickle=options.unsafe_pickle)
    elif kind == "timm":
        loaded = _load_from_timm(text)
    elif kind == "hub":
        loaded = _load_from_hub(text, options)
    elif kind == "folder":
        loaded = _load_folder(read_model_folder(Path(text)), text, options)
    elif kind == "code":
        loaded = load_code(text, options)
    elif options.like is not None:
        loaded = _load_like(Path(text), zoo_entry(options.like), options)
    else:
        loaded = load_file(Path(text), options)
    loaded.victim.to(device).float().eval()
    check_forward(loaded.victim)
    if options.any_size:
        loaded.victim.any_size = True
    return loaded


def load_entry(entry: ZooEntry, *, unsafe_pickle: bool = False) -> LoadedModel:
    """Load the victim of a zoo entry: its weights are fetched, adapted and loaded strictly."""
    weights = weights_to_fetch(entry)
    check_buildable(entry)
    state = fetch_state(weights, name=entry.id, unsafe=unsafe_pickle)
    victim = build_victim(entry)
    load_state(victim.model, state, entry.adapter, declared_normaliser(entry), entry.id)
    finished = finish(victim.model)
    record = {
        "source": "zoo",
        "arch": entry.arch,
        "arch_kwargs": entry.arch_kwargs,
        "adapter": list(entry.adapter),
        "weights": weights_origin(weights, entry.id),
        "licence": entry.licence,
        "unverified": list(entry.unverified),
        **finished,
    }
    return LoadedModel(victim, entry, record)


def build_victim(entry: ZooEntry) -> Victim:
    """Build an entry's model with random weights and its normalisation inside; on the meta device it costs nothing."""
    check_buildable(entry)
    mean, std = declared_normaliser(entry) or (None, None)
    return Victim(
        build_architecture(str(entry.arch), entry.arch_kwargs),
        name=entry.id,
        num_classes=entry.num_classes,
        input_size=entry.input,
        transform=entry.transform,
        mean=mean,
        std=std,
    )


def declared_normaliser(entry: ZooEntry) -> Normaliser | None:
    """Return the normalisation of an entry as mean and standard deviation."""
    return (tuple(entry.normalize["mean"]), tuple(entry.normalize["std"])) if entry.normalize else None


def _load_from_hub(text: str, options: FileOptions) -> LoadedModel:
    """Load a repository of the hub: of transformers, or of timm, whose own loader reads it."""
    folder = fetch_model(text)
    if folder is None:
        if options.given:
            raise UsageError(f"'{text}' is a model of timm, which says all there is to say: drop the options")
        return _load_from_timm("hf-hub:" + text.partition(":")[2])
    loaded = _load_folder(folder, text, options)
    return replace(
        loaded, files=None, record={**loaded.record, "revision": hub.revision_of(folder.path / "config.json")}
    )


def _load_folder(folder: ModelFolder, text: str, options: FileOptions) -> LoadedModel:
    stated = FolderOptions(options.normalize, options.arch_kwargs.get(ATTENTION), options.any_size)
    victim, record = load_folder(folder, text, stated)
    return LoadedModel(victim, None, record, folder.labels, folder.files)


def _load_from_timm(text: str) -> LoadedModel:
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
    except UsageError:
        raise
    except Exception as error:  # the hub client, its transport and timm each raise their own kinds
        reason = printable(without_secrets(first_line(error)))
        raise UsageError(
            f"cannot fetch {text} ({type(error).__name__}: {reason}): connect and run again, or give a local file"
        ) from error
    cfg: dict[str, Any] = dict(model.pretrained_cfg)
    victim = Victim(
        model,
        name=text,
        num_classes=model.num_classes,
        input_size=cfg["input_size"][-1],
        mean=cfg["mean"],
        std=cfg["std"],
        transform=timm_transform(cfg, text),
    )
    keys = (
        *("architecture", "tag", "hf_hub_id", "input_size", "mean", "std", "interpolation", "crop_pct", "crop_mode"),
        "license",
    )
    return LoadedModel(
        victim, None, {"source": source, "cfg": {key: cfg[key] for key in keys if cfg.get(key) is not None}}
    )


def _load_like(path: Path, entry: ZooEntry, options: FileOptions) -> LoadedModel:
    """Read a file fetched by hand as an entry says; a sha256 of the entry must match."""
    weights = entry.weights or WeightSources((), weights_key=CONTAINERS, strip_prefix=PREFIXES)
    here = replace(weights, mirrors=(f"file:{path}",))
    return load_entry(replace(entry, id=str(path), weights=here), unsafe_pickle=options.unsafe_pickle)
