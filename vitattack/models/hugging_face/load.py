"""Models of Hugging Face folders: built by transformers or timm from safetensors, without code from the folder."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from vitattack.core.errors import UsageError, first_line
from vitattack.core.progress import current_listener
from vitattack.core.words import printable
from vitattack.models.architectures.build import build_architecture
from vitattack.models.hugging_face.folder import ModelFolder, require_transformers
from vitattack.models.hugging_face.preprocessing import Preparation, preparation
from vitattack.models.normalise import Normaliser, parse_normaliser
from vitattack.models.timm_config import timm_transform
from vitattack.models.victim import Victim
from vitattack.models.weights.safe_load import read_checkpoint
from vitattack.models.weights.state_dict import load_strict, named_tensors

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of timm where a configuration has none
KERNELS = ("sdpa", "eager")  # of attention; the first that a class supports unless one is asked for


@dataclass(frozen=True)
class FolderOptions:
    """What a user states where a folder does not."""

    normalize: str | None = None
    attention: str | None = None
    any_size: bool = False  # images may differ in size


class FlippedChannels(nn.Module):
    """A model that takes BGR, given RGB."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return self.model(x.flip(1))


class InterpolatedPositions(nn.Module):
    """A model that is asked to fit its position embeddings to the size of the images."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return self.model(x, interpolate_pos_encoding=True)


def load_folder(
    folder: ModelFolder, name: str, options: FolderOptions = FolderOptions()
) -> tuple[Victim, dict[str, Any]]:
    """Load the victim of a folder, and what a record says of its origin."""
    return _from_timm(folder, name) if folder.kind == "timm" else _from_transformers(folder, name, options)


def _from_transformers(folder: ModelFolder, name: str, options: FolderOptions) -> tuple[Victim, dict[str, Any]]:
    require_transformers(name)
    with _quiet_transformers():
        model, kernel = _classifier(folder, name, options.attention)
        if options.any_size and "interpolate_pos_encoding" in signature(model.forward).parameters:
            outer: nn.Module = InterpolatedPositions(model)
        else:
            outer = model
        how = _prepared(folder, name, options.normalize)
    _check_finite(model, name)
    size = how.size or _sides(model.config) or (224, 224)
    mean, std = how.normalize or (None, None)
    victim = Victim(
        FlippedChannels(outer) if how.flip_channels else outer,
        name=name,
        num_classes=int(model.config.num_labels),
        input_size=size,
        mean=mean,
        std=std,
        transform=how.transform,
    )
    record = {"source": "transformers", "arch": folder.architecture, "attention_kernel": kernel}
    return victim, record | {"normalize": _in_words(how.normalize), "version": _version()}


def _classifier(folder: ModelFolder, name: str, attention: str | None) -> tuple[Any, str]:
    """The model with its weights, in fp32, and the attention kernel it runs on."""
    transformers: Any = import_module("transformers")
    classifiers: Any = import_module("transformers.models.auto.modeling_auto")
    stated = classifiers.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES.get(folder.config["model_type"], ())
    known = (stated,) if isinstance(stated, str) else stated
    if folder.architecture not in known:
        raise UsageError(
            f"'{name}' is a {printable(folder.architecture, 60)} of model type "
            f"'{printable(str(folder.config['model_type']), 40)}', which transformers {_version()} has no classifier for: "
            "install the version that saved it"
        )
    cls: Any = getattr(transformers, folder.architecture)
    if attention is not None and attention not in KERNELS:
        raise UsageError(f"attention kernel '{printable(attention, 40)}' is not offered: write sdpa or eager")
    for kernel in (attention,) if attention else KERNELS:
        try:
            model, report = cls.from_pretrained(
                str(folder.path),
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                attn_implementation=kernel,
                dtype=torch.float32,
                output_loading_info=True,
            )
            break
        except Exception as error:  # configurations fail in as many ways as there are classes
            if kernel == "sdpa" and attention is None and "scaled_dot_product_attention" in str(error):
                continue
            reason = printable(first_line(error) or type(error).__name__, 300)
            raise UsageError(
                f"'{name}' cannot be loaded by transformers {_version()} ({reason}): save it again"
            ) from error
    _check_complete(report, name)
    _forget_origin(model)
    return model, str(kernel)


def _forget_origin(model: nn.Module) -> None:
    """Drop where the folder lies and how its tensors were renamed: no part of the function, nor of its digest."""
    for module in model.modules():
        kept = vars(module)
        kept.pop("_weight_conversions", None)
        if "name_or_path" in kept:
            kept["name_or_path"] = ""
        if hasattr(kept.get("config"), "_name_or_path"):
            kept["config"]._name_or_path = ""


def _check_complete(report: dict[str, Any], name: str) -> None:
    """Refuse weights that would stay random; tell of those that are not used."""
    missing, mismatched = sorted(report["missing_keys"]), sorted(map(str, report["mismatched_keys"]))
    if missing or mismatched:
        lacking = printable((missing or mismatched)[0], 80)
        raise UsageError(
            f"'{name}' does not hold all weights of its classifier ({len(missing) + len(mismatched)} are missing or of "
            f"another shape, such as {lacking}), which would be random: save the trained classifier"
        )
    unused = sorted(report["unexpected_keys"])
    if unused:
        current_listener().note(
            f"{name}: {len(unused)} tensors are no part of the classifier, such as {printable(unused[0], 80)}"
        )


def _check_finite(model: nn.Module, name: str) -> None:
    for key, tensor in model.state_dict().items():
        if not torch.isfinite(tensor).all():
            raise UsageError(f"'{name}' holds NaN or infinite values in {key}: the checkpoint is broken")


def _prepared(folder: ModelFolder, name: str, normalize: str | None) -> Preparation:
    """How images are prepared: by the folder's image processor, or as the user says where it has none."""
    if folder.processor is None:
        if normalize is None:
            raise UsageError(
                f"'{name}' has no preprocessor_config.json, so that it does not say how it normalises: "
                "add --normalize half, imagenet, none or MEAN,MEAN,MEAN/STD,STD,STD"
            )
        return Preparation(parse_normaliser(normalize), None, "none")
    if normalize is not None:
        raise UsageError(f"'{name}' says itself how it normalises ({folder.processor.name}): drop --normalize")
    transformers: Any = import_module("transformers")
    try:
        processor = transformers.AutoImageProcessor.from_pretrained(  # nosec B615  # of a folder on this machine
            str(folder.path), local_files_only=True, trust_remote_code=False
        )
        settings = {**processor.to_dict()}
    except Exception as error:  # as above
        reason = printable(first_line(error) or type(error).__name__, 300)
        raise UsageError(f"the image processor of '{name}' cannot be read ({reason}): save it again") from error
    return preparation(settings, name)


def _sides(config: Any) -> tuple[int, int] | None:
    """The height and width of images that a configuration of transformers states."""
    size = getattr(getattr(config, "vision_config", config), "image_size", None)
    if isinstance(size, int):
        return size, size
    return (int(size[0]), int(size[1])) if isinstance(size, list | tuple) and len(size) == 2 else None


def _in_words(normalize: Normaliser | None) -> str:
    if normalize is None:
        return "none"
    return "/".join(",".join(f"{value:g}" for value in part) for part in normalize)


def _version() -> str:
    return version("transformers")


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Keep transformers from printing and from asking the network."""
    from huggingface_hub import constants

    logging: Any = import_module("transformers.utils.logging")
    level, bars, offline = logging.get_verbosity(), logging.is_progress_bar_enabled(), constants.HF_HUB_OFFLINE
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    constants.HF_HUB_OFFLINE = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        constants.HF_HUB_OFFLINE = offline
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _from_timm(folder: ModelFolder, name: str) -> tuple[Victim, dict[str, Any]]:
    """A folder as timm's save_for_hf writes it."""
    if len(folder.weights) != 1:
        raise UsageError(f"'{name}' is cut into shards, which timm does not read: save it in one file")
    try:
        cfg = {**folder.config.get("pretrained_cfg", {})}
        classes = int(folder.config.get("num_classes") or cfg.get("num_classes") or 1000)
        kwargs = {**folder.config.get("model_args", {}), "num_classes": classes}
        side = int(cfg.get("input_size", (3, 224, 224))[-1])
        mean, std = (tuple(map(float, cfg.get(key, default))) for key, default in (("mean", MEAN), ("std", STD)))
        transform = timm_transform(cfg, name)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(
            f"the configuration of '{name}' is not understood ({printable(first_line(error))}): save it again"
        ) from error
    model = build_architecture(folder.architecture, kwargs)
    file = folder.weights[0]
    state = named_tensors(read_checkpoint(file), file.name)
    load_strict(model, {key: t.float() if t.is_floating_point() else t for key, t in state.items()}, name)
    victim = Victim(model, name=name, num_classes=classes, input_size=side, mean=mean, std=std, transform=transform)
    return victim, {"source": "timm folder", "arch": folder.architecture, "arch_kwargs": kwargs}
