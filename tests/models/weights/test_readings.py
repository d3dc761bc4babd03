"""Checkpoints as people save them: nested, prefixed, with other shapes, and files that are no weights."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.models.zoo.own_models import SOURCE
from vitattack.core.errors import UsageError
from vitattack.core.progress import Listener, listening
from vitattack.models.architectures import names
from vitattack.models.architectures.build import ARCHITECTURES, build_architecture
from vitattack.models.architectures.names import OWN, check_architecture
from vitattack.models.architectures.small import SMALL
from vitattack.models.victim import frozen
from vitattack.models.weights.adapters import ADAPTERS, Target
from vitattack.models.weights.file_kind import file_kind
from vitattack.models.zoo.file_options import FileOptions
from vitattack.models.zoo.load import load_model

CPU = torch.device("cpu")
ARCH = "small:tiny_vit_32"
KWARGS = {"embed_dim": 16, "depth": 1, "num_heads": 2}
PLAIN = FileOptions(arch=ARCH, arch_kwargs=KWARGS, normalize="none")


class Heard(Listener):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)

    warn = note


def state(seed: int = 0) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return build_architecture(ARCH, KWARGS).state_dict()


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in tensors.items()}


W = state()
LAYOUTS: dict[str, tuple[Any, str]] = {
    "DataParallel": (under("module.", W), "its tensors without the prefix module."),
    "compiled": (under("_orig_mod.", W), "its tensors without the prefix _orig_mod."),
    "nested": ({"epoch": 3, "state_dict": W}, "tensors under state_dict"),
    "twice nested": (
        {"a": {"model": under("model.module.", W)}},
        "tensors under a.model without the prefix model.module.",
    ),
    "Lightning": (
        {
            "state_dict": {**under("net.", W), "criterion.weight": torch.ones(10)},
            "hyper_parameters": {"lr": 0.1},
            "callbacks": {"ModelCheckpoint{'monitor': 'x'}": {"best": torch.tensor(1.0)}},
            "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(3)}}}],
        },
        "tensors under state_dict without the prefix net. (1 others left out, such as criterion.weight)",
    ),
    "averaged": (
        {"n_averaged": torch.tensor(3), **under("module.", W)},
        "without the prefix module. (1 others left out",
    ),
    "arguments": ({"model": W, "args": argparse.Namespace(lr=1)}, "tensors under model"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_only_reading_that_fits_is_taken_and_told(name: str, tmp_path: Path) -> None:
    content, told = LAYOUTS[name]
    path = tmp_path / "w.ckpt"
    torch.save(content, path)
    heard = Heard()
    with listening(heard):
        loaded = load_model(str(path), CPU, PLAIN)
    own = loaded.victim.model.state_dict()
    assert all(torch.equal(own[key], tensor) for key, tensor in W.items())
    assert len(heard.lines) == 1 and told in heard.lines[0] and "no other fit the architecture" in heard.lines[0]


def test_plain_tensors_are_read_without_a_word(tmp_path: Path) -> None:
    torch.save(W, tmp_path / "w.pt")
    heard = Heard()
    with listening(heard):
        load_model(str(tmp_path / "w.pt"), CPU, PLAIN)
    assert heard.lines == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"model": W, "model_ema": state(1)},
            "2 sets of tensors that fit .* --weights-key model or --weights-key model_ema",
        ),
        ({**under("model.", W), **under("ema.", state(1))}, "--strip-prefix ema. or --strip-prefix model."),
        (under("../model.", W), r"unknown, such as ../model"),
        ({"w" * 50: W, "b": {f"x.{k}": v for k, v in W.items()}}, "2 sets of tensors"),
        (
            {"0.mean": torch.zeros(3), "0.std": torch.ones(3), **under("1.", W)},
            "holds a normaliser .* add --adapter normaliser",
        ),
        ({"other.weight": torch.zeros(3)}, "does not fit the architecture"),
    ],
)
def test_what_fits_twice_or_not_at_all_is_refused(content: Any, message: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(UsageError, match=message) as caught:
        load_model(str(tmp_path / "w.pt"), CPU, PLAIN)
    assert "\n" not in str(caught.value)


def test_the_user_chooses_among_several(tmp_path: Path) -> None:
    averaged = state(1)
    torch.save({"model": W, "model_ema": under("module.", averaged)}, tmp_path / "w.pt")
    options = FileOptions(**{**vars(PLAIN), "weights_key": "model_ema"})
    own = load_model(str(tmp_path / "w.pt"), CPU, options).victim.model.state_dict()
    assert all(torch.equal(own[key], tensor) for key, tensor in averaged.items())
    torch.save({**under("model.", W), **under("ema.", averaged)}, tmp_path / "p.pt")
    options = FileOptions(**{**vars(PLAIN), "strip_prefix": "ema."})
    own = load_model(str(tmp_path / "p.pt"), CPU, options).victim.model.state_dict()
    assert all(torch.equal(own[key], tensor) for key, tensor in averaged.items())


@pytest.mark.parametrize(
    ("arch", "made", "proposed"),
    [
        ("vit_tiny_patch16_224", {"num_classes": 10}, "add --num-classes 10"),
        (
            "vit_tiny_patch16_224",
            {"img_size": 64, "patch_size": 8, "depth": 3},
            '"patch_size": 8, "depth": 3, "img_size": 64',
        ),
        ("vit_tiny_patch16_224", {"embed_dim": 48, "depth": 1}, "the number of heads cannot be read off tensors"),
        ("vit_tiny_patch16_224", {"reg_tokens": 4, "init_values": 1.0, "depth": 1}, '"reg_tokens": 4'),
        (
            "swin_tiny_patch4_window7_224",
            {"window_size": 8, "img_size": 256, "depths": [1, 1, 1, 1]},
            '"depths": [1, 1, 1, 1]',
        ),
        ("resnet18", {"num_classes": 3}, "add --num-classes 3"),
    ],
)
def test_the_arguments_that_would_fit_are_proposed(
    arch: str, made: dict[str, Any], proposed: str, tmp_path: Path
) -> None:
    torch.save({"state_dict": under("module.", build_architecture(arch, made).state_dict())}, tmp_path / "w.pth")
    with pytest.raises(UsageError, match="does not fit the architecture") as caught:
        load_model(str(tmp_path / "w.pth"), CPU, FileOptions(arch=arch, normalize="none"))
    assert proposed in str(caught.value) and "\n" not in str(caught.value)


def programs(folder: Path) -> nn.Module:
    """The same model as TorchScript, as an exported program and as a pickle."""
    import warnings

    torch.manual_seed(0)
    model = build_architecture(ARCH, KWARGS).eval()
    image = torch.rand(1, 3, 32, 32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(model, image).save(str(folder / "traced.pt"))  # type: ignore[no-untyped-call]
        torch.export.save(torch.export.export(model, (image,)), folder / "exported.pt2")
    torch.save(model, folder / "module.pt")
    return model


def test_programs_run_if_they_are_trusted_and_are_named_if_not(tmp_path: Path) -> None:
    model = programs(tmp_path)
    x = torch.rand(3, 3, 32, 32)
    with frozen(model), torch.no_grad():
        expected = model(x)
    for name, words in (
        ("traced.pt", "a TorchScript program"),
        ("exported.pt2", "an exported program"),
        ("module.pt", "a pickled module (timm.models.vision_transformer.VisionTransformer)"),
    ):
        path = tmp_path / name
        with pytest.raises(UsageError, match="reading it could run code.* --unsafe-pickle loads it") as caught:
            load_model(str(path), CPU, FileOptions(normalize="none"))
        assert words in str(caught.value)
        heard = Heard()
        with listening(heard):
            loaded = load_model(str(path), CPU, FileOptions(normalize="none", unsafe_pickle=True))
        assert any("reading it can run code" in line for line in heard.lines)
        with frozen(loaded.victim), torch.no_grad():
            assert torch.allclose(loaded.victim(x), expected, atol=1e-5), name
        assert (loaded.victim.input_size, loaded.victim.num_classes) == (32, 10)
        x_ = x.clone().requires_grad_()
        loaded.victim(x_).logsumexp(1).sum().backward()  # type: ignore[no-untyped-call]
        assert x_.grad is not None and x_.grad.abs().sum() > 0
        with pytest.raises(UsageError, match="which holds its architecture: drop --arch"):
            load_model(str(path), CPU, FileOptions(arch=ARCH, normalize="none", unsafe_pickle=True))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.onnx", b"\x08\x07", r"is an ONNX graph, which torch does not run: .* onnx2torch.convert"),
        ("x.h5", b"\x89HDF", "is a Keras model, which torch does not read"),
        ("x.npz", b"PK", "is an archive of NumPy arrays"),
        ("x.ckpt", b"", r"is not a readable checkpoint \(it is an empty file\)"),
    ],
)
def test_files_of_other_frameworks_are_named(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=message):
        load_model(str(tmp_path / name), CPU, PLAIN)


def test_damaged_files_are_no_programs(tmp_path: Path) -> None:
    programs(tmp_path)
    for path in list(tmp_path.iterdir()):
        whole = path.read_bytes()
        for length in (3, 100, len(whole) // 2):
            (tmp_path / "cut.pt").write_bytes(whole[:length])
            assert file_kind(tmp_path / "cut.pt").kind in ("tensors", "module")


def test_architectures_are_known_by_name_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(OWN) == {*ARCHITECTURES, *(f"small:{name}" for name in SMALL)}
    for name in (
        "vit_tiny_patch16_224",
        "vit_tiny_patch16_224.augreg_in21k",
        "vit_tiny_patch16_224_in21k",
    ):
        check_architecture(name)
    monkeypatch.setattr(names, "find_spec", lambda name: object())
    check_architecture("open_clip:x")  # its package knows the rest
    monkeypatch.setattr(names, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs open_clip, which is not installed: pip install 'vitattack\[clip\]'"):
        check_architecture("open_clip:x")
    with pytest.raises(UsageError, match="unknown architecture 'vit_tinny_patch16_224': did you mean vit_tiny"):
        check_architecture("vit_tinny_patch16_224")


def test_a_module_is_unpickled_where_its_class_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nets_of_mine.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import importlib

    module = importlib.import_module("nets_of_mine")
    torch.save(module.MyViT(), "whole.pt")
    with listening(Heard()):
        loaded = load_model("whole.pt", CPU, FileOptions(normalize="none", unsafe_pickle=True))
    assert loaded.record["source"] == "code" and loaded.victim.num_classes == 10


def test_every_reading_is_tried_on_a_fresh_model(tmp_path: Path) -> None:
    """An adapter that changes its target, as one that installs attention scales does, meets no trace of another reading."""
    met: list[bool] = []

    def planted(tensors: dict[str, Tensor], target: Target) -> dict[str, Tensor]:
        met.append("offset" in dict(target.model.named_buffers()))
        target.model.register_buffer("offset", torch.zeros(1))
        target.model.pos_embed.data += 1  # type: ignore[operator]
        return tensors

    tensors = {**W, "offset": torch.ones(1)}
    torch.save({"a": {k: t[..., :1] for k, t in W.items()}, "b": tensors, "c": W}, tmp_path / "w.pt")
    options = FileOptions(arch=ARCH, arch_kwargs=KWARGS, normalize="none", adapter="planted")
    with ADAPTERS.temporarily("planted", planted):
        victim = load_model(str(tmp_path / "w.pt"), CPU, options).victim
    assert len(met) > 3 and not any(met)
    assert torch.equal(dict(victim.model.named_buffers())["offset"], torch.ones(1))
    assert all(torch.equal(victim.model.state_dict()[name], tensor) for name, tensor in tensors.items())
