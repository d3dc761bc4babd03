"""Victims from a user's own files and code: checkpoints of an architecture, programs, and callables."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vitattack.core.errors import UsageError
from vitattack.core.progress import current_listener
from vitattack.core.words import printable
from vitattack.models.architectures.build import build_architecture
from vitattack.models.architectures.read_off import fitting_arguments
from vitattack.models.clip.texts import OPEN_CLIP
from vitattack.models.clip.zero_shot import filled_part, finish
from vitattack.models.input_size import channels_taken, find_size, stated_size
from vitattack.models.normalise import Normaliser, parse_normaliser
from vitattack.models.programs import Program, load_program
from vitattack.models.user_code import build_from_code
from vitattack.models.victim import Victim, check_module
from vitattack.models.weights.adapters import State, Target, adapt
from vitattack.models.weights.file_kind import PROGRAMS, FileKind, file_kind
from vitattack.models.weights.readings import Reading, Shapes, fitting_reading, nearest_reading
from vitattack.models.weights.safe_load import read_checkpoint
from vitattack.models.weights.state_dict import load_strict, named_tensors
from vitattack.models.zoo.file_options import FileOptions
from vitattack.models.zoo.loaded import LoadedModel


def load_file(path: Path, options: FileOptions) -> LoadedModel:
    """Load a checkpoint as the options say, or a program, which holds its architecture."""
    kind = file_kind(path)
    if kind.kind in PROGRAMS:
        return _load_program(path, kind, options)
    content = read_checkpoint(path, unsafe=options.unsafe_pickle)
    kwargs = options.architecture_arguments()
    normalize = parse_normaliser(str(options.normalize))
    if options.model_from is not None:
        module = build_from_code(options.model_from, kwargs)
        model = module.model if isinstance(module, Victim) else module
    else:
        module = model = build_architecture(str(options.arch), kwargs)
    reading = _read(content, model, path.name, options, normalize)
    load_state(model, reading.state, _adapters(options), normalize, path.name)
    finished = finish(model)
    record: dict[str, Any] = {"source": "file", "arch": options.arch, "arch_kwargs": kwargs, "adapter": options.adapter}
    record |= {"normalize": options.normalize, **finished}
    if options.model_from is not None:
        victim = _victim_of(module, str(path), options, normalize)
        return LoadedModel(victim, None, {**record, "source": "code", "model_from": options.model_from})
    size = options.size or stated_size(model, kwargs) or (32, 32)
    channels = 1 if kwargs.get("in_chans") == 1 else 3
    victim = _victim(model, str(path), class_count(model, kwargs), size, normalize, channels)
    return LoadedModel(victim, None, record)


def load_code(text: str, options: FileOptions) -> LoadedModel:
    """Run a user's code and load the model it returns."""
    kwargs = options.architecture_arguments()
    module = build_from_code(text, kwargs)
    victim = _victim_of(module, text, options, parse_normaliser(str(options.normalize)))
    return LoadedModel(
        victim, None, {"source": "code", "model_from": text, "arch_kwargs": kwargs, "normalize": options.normalize}
    )


def load_state(
    model: nn.Module, state: Mapping[str, Tensor], adapters: tuple[str, ...], normalize: Normaliser | None, name: str
) -> None:
    """Adapt tensors to a model and load them strictly; `finish` is left to do."""
    filled = filled_part(model)
    load_strict(filled, _adapted(state, filled, adapters, normalize), name)


def _adapted(
    state: Mapping[str, Tensor], model: nn.Module, adapters: tuple[str, ...], normalize: Normaliser | None
) -> State:
    floats = {key: t.float() if t.is_floating_point() else t for key, t in state.items()}
    return adapt(floats, Target(model, normalize), adapters)


def _shapes(model: nn.Module) -> Shapes:
    return {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}


def _adapters(options: FileOptions) -> tuple[str, ...]:
    return (options.adapter,) if options.adapter else ()


def _read(
    content: dict[Any, Any], model: nn.Module, name: str, options: FileOptions, normalize: Normaliser | None
) -> Reading:
    """The tensors of a checkpoint that fit the model; a UsageError says what would."""
    model = filled_part(model)
    wanted = _shapes(model)
    adapters = _adapters(options)

    def adapted(state: State) -> tuple[State, Shapes]:
        fresh = copy.deepcopy(model)  # adapters may change the model that loads what they adapt
        return _adapted(state, fresh, adapters, normalize), _shapes(fresh)

    key, prefix = options.weights_key, options.strip_prefix
    reading = fitting_reading(content, wanted, name, key=key, prefix=prefix, adapted=adapted if adapters else None)
    if reading is not None:
        named_tensors(reading.state, name)  # refuses special forms
        if (reading.key and key is None) or (reading.prefix and prefix is None) or reading.left_out:
            current_listener().note(
                f"{printable(name)}: {printable(reading.words, 200)} are read: no other fit the architecture"
            )
        return reading
    near = None if adapters else nearest_reading(content, wanted, key, prefix)
    if near is not None:
        _propose(near, wanted, name, options)
        return near  # which strict loading refuses with what does not fit
    state = named_tensors(content, name, key)
    cut = {name_.removeprefix(prefix or ""): tensor for name_, tensor in state.items()}
    return Reading(cut, key or "", prefix or "", ())


def _propose(reading: Reading, wanted: Shapes, name: str, options: FileOptions) -> None:
    """Refuse tensors of other shapes with the arguments under which the architecture would have them."""
    if options.arch is None or options.arch.startswith(OPEN_CLIP):
        return
    theirs = {key: tuple(tensor.shape) for key, tensor in reading.state.items()}
    arguments = fitting_arguments(options.arch, options.architecture_arguments(), theirs)
    if arguments is None:
        return
    differs = [key for key in theirs if key in wanted and theirs[key] != wanted[key]]
    what = (
        f"{differs[0]} is {theirs[differs[0]]} in the file and {wanted[differs[0]]} in the model"
        if differs
        else (f"it has {len(theirs)} tensors, the model {len(wanted)}")
    )
    if arguments.keys() == {"num_classes"}:
        fix = f"--num-classes {arguments['num_classes']}"
    else:
        fix = f"--arch-kwargs '{json.dumps({**options.arch_kwargs, **arguments})}'"
    heads = ""
    if "embed_dim" in arguments:
        heads = "; the number of heads cannot be read off tensors: state num_heads if it is not the architecture's"
    raise UsageError(f"'{printable(name)}' does not fit the architecture: {what}: add {fix}{heads}")


def _load_program(path: Path, kind: FileKind, options: FileOptions) -> LoadedModel:
    module = load_program(path, kind)
    victim = _victim_of(module, str(path), options, parse_normaliser(str(options.normalize)))
    # The code of a pickled module lies outside its file.
    source = "code" if kind.kind == "module" else "file"
    record = {"source": source, "program": kind.kind, "normalize": options.normalize}
    return LoadedModel(victim, None, record)


def _victim_of(module: nn.Module, name: str, options: FileOptions, normalize: Normaliser | None) -> Victim:
    """A module as a victim; size and classes are the user's, or its own, or found by trying."""
    if isinstance(module, Victim):
        return module
    check_module(module.float())
    size = options.size or find_size(module, name, several=options.any_size)
    taken = channels_taken(module, size)
    if taken is None and isinstance(module, Program) and module.batch is None:
        module.batch = 1  # traced for one image at a time
        taken = channels_taken(module, size)
    if taken is None:
        raise UsageError(
            f"'{printable(name)}' gives no logits of (2, classes) for two images of {size[0]} x {size[1]} px: "
            "correct --input-size, or let it return a tensor of logits"
        )
    channels, logits = taken
    return _victim(module, name, logits.shape[1], size, normalize, channels)


def _victim(
    model: nn.Module, name: str, classes: int, size: tuple[int, int], normalize: Normaliser | None, channels: int
) -> Victim:
    mean, std = normalize or (None, None)
    if mean is not None and len(mean) > channels:
        raise UsageError(
            f"'{printable(name)}' takes images with one channel, and --normalize is for three: write MEAN/STD, as in 0.5/0.5"
        )
    return Victim(model, name=name, num_classes=classes, input_size=size, mean=mean, std=std, channels=channels)


def class_count(model: nn.Module, kwargs: Mapping[str, Any]) -> int:
    """Return the number of classes of a model, by its own attribute or its arguments."""
    classes = getattr(model, "num_classes", None) or kwargs.get("num_classes")
    return int(classes) if classes else 1000


def input_size_of(model: nn.Module, kwargs: Mapping[str, Any]) -> int:
    """Return the side of the images a model takes, by its own attributes or its arguments."""
    stated = stated_size(model, kwargs)
    return stated[1] if stated is not None else 32
