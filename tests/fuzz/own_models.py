"""Fuzzed models that users hold: folders of transformers and timm, label maps, checkpoints of trainers, programs."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from functools import cache
from typing import Any

import torch
from hypothesis import strategies as st

from tests.fuzz.guard import expect
from tests.fuzz.mutations import edited_bytes, edited_trees, odd_texts
from tests.fuzz.target import Target, emptied, written
from tests.fuzz.weights import STATE
from vitattack.core.words import printable
from vitattack.data.labels.class_names import aliases, order_by_name
from vitattack.models.architectures.read_off import fitting_arguments
from vitattack.models.hugging_face.folder import ADAPTER, CONFIG, PROCESSORS, WEIGHTS, WEIGHTS_INDEX, read_model_folder
from vitattack.models.hugging_face.preprocessing import preparation
from vitattack.models.weights.file_kind import PROGRAMS, file_kind
from vitattack.models.weights.readings import fitting_reading, nearest_reading
from vitattack.models.weights.safe_load import read_checkpoint
from vitattack.text.class_lists import CIFAR10
from vitattack.text.image_transform import parse_transform

PLACEHOLDERS = {str(number): f"LABEL_{number}" for number in range(3)}
TRANSFORMERS: dict[str, Any] = {
    "architectures": ["ViTForImageClassification"],
    "model_type": "vit",
    "hidden_size": 8,
    "image_size": [32, 48],
    "id2label": {"0": "cat", "1": "dog"},
    "label2id": {"cat": 0, "dog": 1},
    "quantization_config": None,
    "vision_config": {"auto_map": {}, "attn_implementation": "sdpa"},
}
CONFIGS: list[Any] = [
    TRANSFORMERS,
    {**TRANSFORMERS, "id2label": PLACEHOLDERS},
    {**TRANSFORMERS, "auto_map": {"AutoModel": "evil.Model"}},
    {"architecture": "vit_tiny_patch16_224", "num_classes": 2, "label_names": ["a", "b"], "model_args": {"depth": 1}},
    {"architecture": "resnet18", "pretrained_cfg": {"mean": [0.5] * 3, "input_size": [3, 32, 32]}},
]
PROCESSING: list[Any] = [
    {"size": {"height": 32, "width": 48}, "resample": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3},
    {"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}, "do_center_crop": True, "resample": 3},
    {"size": 224, "crop_pct": 0.875, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": False},
    {"do_resize": False, "include_top": True, "rescale_offset": True, "do_flip_channel_order": True, "resample": 0},
    {"image_processor_type": "LevitImageProcessor", "size": {"shortest_edge": 224}, "do_normalize": True},
]
INDEX: list[Any] = [
    {"weight_map": {"a": "model-1.safetensors", "b": "../b.safetensors"}},
    {"weight_map": {"a": WEIGHTS}},
]
WORDS = ("auto_map", "ViTForImageClassification", "org/kernel", "checkpoint_path", "model_args", "vit")


@st.composite
def folders(draw: st.DrawFn) -> dict[str, str]:
    """Names and texts of the files in a folder."""
    files = {CONFIG: json.dumps(draw(edited_trees(CONFIGS, WORDS)))}
    if draw(st.booleans()):
        files[draw(st.sampled_from(PROCESSORS))] = json.dumps(draw(edited_trees(PROCESSING)))
    if draw(st.integers(0, 9)) == 0:
        files[ADAPTER] = "{}"
    if draw(st.booleans()):
        files[WEIGHTS] = ""
    else:
        files[WEIGHTS_INDEX] = json.dumps(draw(edited_trees(INDEX)))
    if draw(st.integers(0, 4)) == 0:
        spoilt = draw(st.sampled_from(sorted(files)))
        files[spoilt] = draw(edited_bytes([files[spoilt].encode()])).decode("latin-1")
    return files


def _folder(files: dict[str, str]) -> None:
    folder = emptied("model")
    for name, text in files.items():
        (folder / name).write_bytes(text.encode("latin-1", errors="replace"))
    found = read_model_folder(folder)
    expect(ADAPTER not in files, "an adapter was taken for a model")
    expect(all(path.parent == folder for path in found.files), f"files outside the folder: {found.files}")
    expect(all(isinstance(label, str) for label in found.labels or ()), f"labels {found.labels!r:.80}")
    expect(found.architecture == printable(found.architecture), f"architecture {found.architecture!r}")


def _processor(settings: Any) -> None:
    found = preparation(settings if isinstance(settings, dict) else {}, "m")
    parse_transform(found.transform)
    expect(found.size is None or all(0 < side <= 8192 for side in found.size), f"size {found.size}")


def _label_map(labels: Any) -> None:
    names = [str(label) for label in labels] if isinstance(labels, list) else []
    order = order_by_name(names, aliases(CIFAR10), "the data")
    expect(order is None or sorted(order) == list(range(10)), f"order {order}")


@cache
def _lightning() -> list[bytes]:
    prefixed = {f"model.{name}": tensor for name, tensor in STATE.items()}
    optimiser = {"state": {0: {"step": torch.tensor(1.0), "exp_avg": torch.zeros(2)}}, "param_groups": [{"lr": 0.1}]}
    contents = [
        {"epoch": 3, "pytorch-lightning_version": "2.5.0", "state_dict": prefixed, "optimizer_states": [optimiser]},
        {"state_dict": prefixed, "hyper_parameters": {"lr": 0.1}, "callbacks": {"ModelCheckpoint{'a': 1}": {"k": 1}}},
        {"state_dict": STATE, "ema_state_dict": prefixed, "loops": {"fit_loop": {"state_dict": {}}}},
    ]
    files = []
    for content in contents:
        stream = io.BytesIO()
        torch.save(content, stream)
        files.append(stream.getvalue())
    return files


@st.composite
def lightning_files(draw: st.DrawFn) -> bytes:
    seeds = _lightning()
    if draw(st.booleans()):
        return draw(edited_bytes(seeds))
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(draw(st.sampled_from(seeds)))) as old, zipfile.ZipFile(stream, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            new.writestr(info.filename, draw(edited_bytes([data])) if info.filename.endswith("data.pkl") else data)
    return stream.getvalue()


WANTED = {name: tuple(tensor.shape) for name, tensor in STATE.items()}


def _lightning_file(data: bytes) -> None:
    path = written("w.ckpt", data)
    kind = file_kind(path)
    if kind.kind in PROGRAMS:
        return
    _read_as_wanted(read_checkpoint(path))


def _read_as_wanted(content: Any) -> None:
    found = fitting_reading(content, WANTED, "w.ckpt")
    if found is not None:
        expect({name: tuple(t.shape) for name, t in found.state.items()} == WANTED, f"{found.words} does not fit")
    near = nearest_reading(content, WANTED, None, None)
    expect(near is None or all(isinstance(t, torch.Tensor) for t in near.state.values()), "no tensors")


def _archive(**members: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return stream.getvalue()


@cache
def _programs() -> list[bytes]:
    module = io.BytesIO()
    torch.save(torch.nn.Linear(2, 2), module)
    old = io.BytesIO()
    torch.save(torch.nn.Linear(2, 2), old, _use_new_zipfile_serialization=False)
    scripted = {
        "m/constants.pkl": pickle.dumps(()),
        "m/data.pkl": b"\x80\x02c__torch__\nM\n",
        "m/code/__torch__.py": b"",
    }
    exported = {"m/models/model.json": b"{}", "m/data/weights/weight_0": bytes(8), "m/archive_format": b"pt2"}
    former = {"serialized_exported_program.json": b"{}", "version": b"8.9"}
    return [module.getvalue(), old.getvalue(), *(_archive(**members) for members in (scripted, exported, former))]


@st.composite
def program_files(draw: st.DrawFn) -> bytes:
    """Programs with edited bytes, and archives whose members were renamed."""
    if draw(st.booleans()):
        return draw(edited_bytes(_programs()))
    names = st.sampled_from(("a/constants.pkl", "a/data.pkl", "a/models/model.json", "data.pkl", "../x/constants.pkl"))
    members = draw(
        st.dictionaries(st.one_of(names, odd_texts()), st.sampled_from((b"", b"\x80\x02}.", b"{}")), max_size=4)
    )
    return _archive(**{name.encode(errors="replace").decode(): data for name, data in members.items()})


def _program(data: bytes) -> None:
    kind = file_kind(written("w.pt", data))
    expect(kind.kind in ("tensors", *PROGRAMS), f"kind {kind.kind}")
    expect(kind.of == printable(kind.of), f"a class {kind.of!r}")


def _named(tree: Any) -> Any:
    """A tree with tensors in the place of texts such as `t3x4`."""
    if isinstance(tree, dict):
        return {key: _named(value) for key, value in tree.items()}
    if isinstance(tree, str) and tree.startswith("t") and all(part.isdecimal() for part in tree[1:].split("x")):
        shape = [int(part) for part in tree[1:].split("x")]
        return torch.zeros(shape) if len(shape) < 9 and all(side < 99 for side in shape) else tree
    return [_named(value) for value in tree] if isinstance(tree, list) else tree


TREE = {"head.weight": "t3x4", "head.bias": "t3", "steps": "t1"}
NESTED: list[Any] = [
    {"state_dict": {f"module.{name}": text for name, text in TREE.items()}, "epoch": 1},
    {"model": TREE, "model_ema": {"module": TREE}},
    {"a": {"b": {"c": {"d": {"e": TREE}}}}, "mean": "t3", **{f"m.{name}": text for name, text in TREE.items()}},
]
WANTED_TREE = {"head.weight": (3, 4), "head.bias": (3,), "steps": (1,)}


def _nested(tree: Any) -> None:
    content = _named(tree)
    if not isinstance(content, dict):
        return
    for key, prefix in ((None, None), ("model", None), (None, "module."), (".", "")):
        found = fitting_reading(content, WANTED_TREE, "w.pt", key=key, prefix=prefix)
        if found is not None:
            expect({n: tuple(t.shape) for n, t in found.state.items()} == WANTED_TREE, f"{found.words} does not fit")
            expect(found.words == printable(found.words, 10_000), f"words {found.words!r}")


SHAPES: list[Any] = [
    [
        ["patch_embed.proj.weight", [16, 3, 8, 8]],
        ["pos_embed", [1, 17, 16]],
        ["cls_token", [1, 1, 16]],
        ["head.weight", [2, 16]],
    ],
    [["blocks.0.attn.qkv.bias", [48]], ["blocks.0.mlp.fc1.weight", [64, 16]], ["reg_token", [1, 4, 16]]],
]


def _shapes(listed: Any) -> None:
    shapes = {}
    for item in listed if isinstance(listed, list) else ():
        if isinstance(item, list) and len(item) == 2 and isinstance(item[0], str) and isinstance(item[1], list):
            shapes[item[0]] = tuple(side for side in item[1] if isinstance(side, int) and 0 <= side < 64)
    kwargs = {"embed_dim": 16, "depth": 1, "num_heads": 2}
    found = fitting_arguments("small:tiny_vit_32", kwargs, shapes)
    expect(found is None or isinstance(found, dict), f"arguments {found}")


TARGETS = (
    Target("model folders", folders, _folder),
    Target("image processors", lambda: edited_trees(PROCESSING), _processor),
    Target("label maps", lambda: edited_trees([list(CIFAR10), list(reversed(CIFAR10))], CIFAR10), _label_map),
    Target("lightning files", lightning_files, _lightning_file),
    Target("model programs", program_files, _program),
    Target("nested checkpoints", lambda: edited_trees(NESTED, ("t3x4", "t3", "t0", "t3x4x5")), _nested),
    Target("read-off shapes", lambda: edited_trees(SHAPES), _shapes),
)
