"""A model folder as save_pretrained writes it, read and checked without torch and without running code from it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from vitattack.core.errors import UsageError
from vitattack.core.files import no_pipe
from vitattack.core.words import names_a_file, printable

CONFIG, ADAPTER = "config.json", "adapter_config.json"
PROCESSORS = ("preprocessor_config.json", "processor_config.json")
WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"
LARGEST_JSON = 8 << 20  # bytes
MOST_LABELS = 100_000  # ImageNet-21k has 21,843
# Keys that name code or files beyond the folder, wherever they stand.
FORBIDDEN = {
    "auto_map": "names Python code of its own, which is never run",
    "custom_pipelines": "names Python code of its own, which is never run",
    "quantization_config": "is quantised, and verdicts are those of fp32 weights",
    "transformers_weights": "names a weights file of its own",
    "peft_config": "holds an adapter, not a model",
}
# Arguments of timm's create_model that name files, or make it something else than a classifier.
TIMM_ARGUMENTS = {
    "checkpoint_path",
    "pretrained",
    "pretrained_cfg",
    "pretrained_cfg_overlay",
    "cache_dir",
    "features_only",
}


@dataclass(frozen=True)
class ModelFolder:
    """A folder with a classifier: what its config.json says of it, and the files it is read from."""

    path: Path
    kind: Literal["transformers", "timm"]
    architecture: str  # a class of transformers, or a name of timm
    labels: tuple[str, ...] | None  # by class number; None where classes have no names
    weights: tuple[Path, ...]
    processor: Path | None  # says how images are prepared
    config: dict[str, Any]

    @property
    def files(self) -> tuple[Path, ...]:
        """Everything the model depends on; files that are missing would change it once they appear."""
        index = self.path / WEIGHTS_INDEX
        return (
            self.path / CONFIG,
            self.path / ADAPTER,
            index,
            *(self.path / name for name in PROCESSORS),
            *self.weights,
        )


def names_a_folder(text: str | Path) -> bool:
    """Whether a folder of this name exists; False as well for text that no folder can be called."""
    try:
        return Path(text).is_dir()
    except (OSError, ValueError):
        return False


def require_transformers(name: str) -> None:
    """Raise a UsageError that says how to install transformers if it is missing; it is not imported."""
    if find_spec("transformers") is None:
        raise UsageError(
            f"'{printable(name)}' is a model of Hugging Face transformers, which is not installed: "
            "pip install 'vitattack[transformers]'"
        )


def read_model_folder(path: Path, name: str | None = None) -> ModelFolder:
    """Read what a folder says of its model; raise a UsageError if it is no classifier with safetensors weights."""
    name = printable(name or str(path))
    if names_a_file(path / ADAPTER):
        raise UsageError(
            f"'{name}' holds an adapter, which is no model by itself: merge it into its base model, "
            "as peft's merge_and_unload() does, and save that with save_pretrained"
        )
    if not names_a_file(path / CONFIG):
        raise UsageError(
            f"folder '{name}' has no {CONFIG}, so that it is no model: save one there with save_pretrained, "
            "or name the checkpoint file in it"
        )
    config = read_json_file(path / CONFIG, f"{name}/{CONFIG}")
    refuse_code(config, name)
    kind, architecture = _architecture(config, name)
    processor = next((path / file for file in PROCESSORS if names_a_file(path / file)), None)
    if processor is not None:
        refuse_code(read_json_file(processor, f"{name}/{processor.name}"), name)
    return ModelFolder(path, kind, architecture, _labels(config, name), _weights(path, name), processor, config)


def read_json_file(path: Path, name: str) -> dict[str, Any]:
    """Read a JSON object of limited size in which no name stands twice."""
    try:
        size = path.stat().st_size
        if size > LARGEST_JSON:
            raise UsageError(f"'{name}' has {size:,} bytes, more than {LARGEST_JSON:,}: it is refused")
        content = json.loads(no_pipe(path).read_bytes(), object_pairs_hook=_each_once)
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"'{name}' is not readable JSON ({printable(str(error))}): save the model again") from error
    if not isinstance(content, dict):
        raise UsageError(f"'{name}' is no JSON object: save the model again")
    return content


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a name stands twice")
    return content


def refuse_code(content: dict[str, Any], name: str) -> None:
    """Refuse a configuration that asks for code, files or kernels from outside its folder, at any depth."""
    for key, value in _pairs(content):
        if key in FORBIDDEN and value not in (None, {}, []):
            raise UsageError(
                f"'{name}' {FORBIDDEN[key]} ({key}): choose a model of a class of transformers, "
                "or load it in Python and hand it to vitattack.evaluate"
            )
        if "attn_implementation" in key and isinstance(value, str) and "/" in value:
            raise UsageError(
                f"'{name}' asks for a kernel from the hub ({printable(value, 60)}), which is never run: drop {key}"
            )
        if key == "model_args" and isinstance(value, dict) and TIMM_ARGUMENTS & value.keys():
            raise UsageError(
                f"'{name}' sets {min(TIMM_ARGUMENTS & value.keys())} of timm, which is no part of a model: drop it"
            )
        if key == "architecture" and not re.fullmatch(r"[A-Za-z0-9][\w.]*", str(value)):
            raise UsageError(
                f"'{name}' names an architecture '{printable(str(value), 60)}', which timm does not have: correct it"
            )


def _pairs(content: Any) -> Iterator[tuple[str, Any]]:
    waiting = [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield from value.items()
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def _architecture(config: dict[str, Any], name: str) -> tuple[Literal["transformers", "timm"], str]:
    """The class or the timm name that a configuration states."""
    stated = config.get("architectures")
    if stated is None and isinstance(config.get("architecture"), str) and "model_type" not in config:
        return "timm", str(config["architecture"])
    if not isinstance(config.get("model_type"), str) or not isinstance(stated, list) or not stated:
        raise UsageError(
            f"'{name}' does not say its architecture in {CONFIG}: save the model with save_pretrained of transformers or timm"
        )
    architecture = str(stated[0])
    if not re.fullmatch(r"\w+ForImageClassification\w*", architecture) or architecture.startswith("ImageGPT"):
        raise UsageError(
            f"'{name}' holds a {printable(architecture, 60)}, which gives no logits for pixels: "
            "save a ...ForImageClassification, one that was trained to classify"
        )
    return "transformers", architecture


def _labels(config: dict[str, Any], name: str) -> tuple[str, ...] | None:
    """The names of the classes by number; None where they have none, or only placeholders."""
    stated, listed = config.get("id2label"), config.get("label_names")
    if isinstance(listed, list):  # of timm
        return _checked([str(label) for label in listed], name)
    if not isinstance(stated, dict):
        return None
    if len(stated) > MOST_LABELS:
        raise UsageError(f"'{name}' names {len(stated):,} classes, more than {MOST_LABELS:,}: it is refused")
    if set(stated) != {str(number) for number in range(len(stated))} or not stated:
        raise UsageError(f"'{name}' does not number its classes from 0 on (id2label in {CONFIG}): correct it")
    return _checked([str(stated[str(number)]) for number in range(len(stated))], name)


def _checked(labels: list[str], name: str) -> tuple[str, ...] | None:
    if len(labels) > MOST_LABELS:
        raise UsageError(f"'{name}' names {len(labels):,} classes, more than {MOST_LABELS:,}: it is refused")
    placeholders = all(label == f"LABEL_{number}" for number, label in enumerate(labels))
    return None if placeholders else tuple(labels)


def _weights(path: Path, name: str) -> tuple[Path, ...]:
    """The safetensors files of a folder: one, or the shards that an index lists."""
    if names_a_file(path / WEIGHTS):
        return (path / WEIGHTS,)
    if names_a_file(path / WEIGHTS_INDEX):
        listed = listed_shards(path, name)
        missing = next((file for file in listed if not names_a_file(path / file)), None)
        if missing:
            raise UsageError(f"'{name}' lacks {missing}, which its index lists: copy the whole folder")
        return tuple(path / file for file in listed)
    pickled = next((file.name for file in sorted(path.glob("pytorch_model*.bin"))), None)
    if pickled:
        raise UsageError(
            f"'{name}' holds pickled weights ({printable(pickled, 60)}), and only safetensors are read: load it in Python "
            "with from_pretrained and save it with save_pretrained, which writes safetensors"
        )
    raise UsageError(f"'{name}' has no {WEIGHTS}: save the whole model there with save_pretrained")


def listed_shards(path: Path, name: str) -> tuple[str, ...]:
    """The names of the weights files that an index lists, all of them beside it."""
    listed = read_json_file(path / WEIGHTS_INDEX, f"{name}/{WEIGHTS_INDEX}").get("weight_map")
    names = sorted(set(map(str, listed.values()))) if isinstance(listed, dict) else []
    odd = next((file for file in names if not re.fullmatch(r"[\w-][\w.-]*\.safetensors", file)), None)
    if odd is not None or not names:
        what = (
            f"a weights file '{printable(odd, 60)}', which is no file beside it"
            if odd is not None
            else "no weights file"
        )
        raise UsageError(f"the index of '{name}' lists {what}: it is refused, save the model again")
    return tuple(names)
