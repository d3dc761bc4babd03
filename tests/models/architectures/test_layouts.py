"""Checkpoints in their authors' layouts fit the entries, and give the logits of RobustBench's classes.

The layouts and logits were recorded by tests/parity/robustbench_models.py; its output is in docs/evidence.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.models.architectures.layouts import HERE, Layout, read
from tests.parity.deterministic_weights import fill, images
from vitattack.core.errors import UsageError
from vitattack.models.victim import frozen
from vitattack.models.weights.adapters import Target, adapt
from vitattack.models.weights.state_dict import load_strict
from vitattack.models.zoo.catalogue import zoo_entries
from vitattack.models.zoo.entry import ZooEntry
from vitattack.models.zoo.load import build_victim, declared_normaliser, load_entry

LAYOUTS = sorted(HERE.glob("*.txt"))
# One of each family that is quick to run; the rest is slow, and the script runs them all.
QUICK = ("XCiT-S12", "ViT-S-ConvStem", "DeiT-S", "ConvNeXt-T-ConvStem", "MIMIR_Swin-B", "Liu2023Comprehensive_Swin-B")


def stripped(layout: Layout, entry: ZooEntry) -> dict[str, str]:
    """Names in the file, and what is left of them once the declared prefixes are cut."""
    assert entry.weights is not None
    names = {name: name for name in layout.tensors}
    for prefix in entry.weights.strip_prefix:
        names = {name: left.removeprefix(prefix) for name, left in names.items()}
    return names


def filled(layout: Layout, entry: ZooEntry) -> dict[str, Tensor]:
    names = stripped(layout, entry)
    return {
        names[name]: torch.from_numpy(fill(names[name], shape).astype("float32"))
        if kind == "float32" and not name.endswith("attn_mask")
        else torch.zeros(shape, dtype=getattr(torch, kind))
        for name, (shape, kind) in layout.tensors.items()
    }


def test_there_is_a_layout_for_every_class() -> None:
    names = " ".join(path.stem for path in LAYOUTS)
    for wanted in ("XCiT-S12", "XCiT-M12", "XCiT-L12", "Liu", "Mo2022When_Swin", "Mo2022When_ViT", "RodriguezMunoz"):
        assert wanted in names
    for wanted in ("ViT-S-ConvStem", "ViT-B-ConvStem", "MIMIR_Swin-B", "MIMIR_Swin-L", "DeiT-S", "WRN-28-10"):
        assert wanted in names


@pytest.mark.parametrize("path", LAYOUTS, ids=lambda path: path.stem)
def test_names_and_shapes_fit_once_adapted(path: Path) -> None:
    layout = read(path)
    entry = zoo_entries()[layout.entry]
    with torch.device("meta"):
        model = build_victim(entry).model
    names = stripped(layout, entry)
    state = {names[n]: torch.empty(shape, device="meta") for n, (shape, _) in layout.tensors.items()}
    adapted = adapt(state, Target(model, declared_normaliser(entry)), entry.adapter)
    assert {n: t.shape for n, t in adapted.items()} == {n: t.shape for n, t in model.state_dict().items()}


def check_logits(path: Path, tmp_path: Path) -> None:
    layout = read(path)
    entry = zoo_entries()[layout.entry]
    assert entry.weights is not None
    file = tmp_path / "filled.safetensors"
    save_file(filled(layout, entry), file)
    here = replace(entry.weights, mirrors=(f"file:{file}",), weights_key=(), strip_prefix=())
    victim = load_entry(replace(entry, weights=here)).victim.eval()
    with frozen(victim), torch.no_grad():
        logits = victim(torch.from_numpy(images(entry.input)[:1].astype("float32")))[0, :8]
    torch.testing.assert_close(logits, torch.tensor(layout.logits), rtol=0, atol=1e-5)
    file.unlink()


@pytest.mark.parametrize("path", [p for p in LAYOUTS if any(q in p.stem for q in QUICK)], ids=lambda path: path.stem)
def test_logits_are_those_of_the_reference(path: Path, tmp_path: Path) -> None:
    check_logits(path, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [p for p in LAYOUTS if not any(q in p.stem for q in QUICK)], ids=lambda path: path.stem
)
def test_logits_of_the_others_are_those_of_the_reference(path: Path, tmp_path: Path) -> None:
    check_logits(path, tmp_path)


@pytest.mark.parametrize(
    ("change", "moved"),
    [
        ({"normalize": None}, True),  # trap 1: normalisation is per checkpoint
        ({"arch_kwargs": {"num_classes": 10, "eta": 1.0}}, False),
    ],
)
def test_a_wrong_entry_would_show(change: dict[str, object], moved: bool, tmp_path: Path) -> None:
    layout = read(HERE / "Debenedetti2022Light_XCiT-S12-cifar10.txt")
    entry = zoo_entries()[layout.entry]
    victim = build_victim(replace(entry, **change)).eval()  # type: ignore[arg-type]
    load_strict(victim.model, filled(layout, entry), "filled")
    with frozen(victim), torch.no_grad():
        logits = victim(torch.from_numpy(images(32)[:1].astype("float32")))[0, :8]
    assert ((logits - torch.tensor(layout.logits)).abs().max() > 1e-2) == moved


def test_patches_of_16_would_show(tmp_path: Path) -> None:
    """The strides are not in the checkpoint: a stem left as it is loads strictly and answers otherwise."""
    layout = read(HERE / "Debenedetti2022Light_XCiT-S12-cifar10.txt")
    entry = replace(zoo_entries()[layout.entry], arch="xcit_small_12_p16_224", arch_kwargs={"num_classes": 10})
    victim = build_victim(entry).eval()
    load_strict(victim.model, filled(layout, entry), "filled")
    with frozen(victim), torch.no_grad():
        logits = victim(torch.from_numpy(images(32)[:1].astype("float32")))[0, :8]
    assert (logits - torch.tensor(layout.logits)).abs().max() > 1e-2


def test_old_swin_states_are_refused_without_their_adapter() -> None:
    """Trap 2: never strict=False, which would leave the down-sampling random."""
    layout = read(HERE / "Liu2023Comprehensive_Swin-B.txt")
    entry = zoo_entries()[layout.entry]
    with torch.device("meta"):
        model = build_victim(entry).model
    names = stripped(layout, entry)
    state = {names[n]: torch.empty(shape, device="meta") for n, (shape, _) in layout.tensors.items()}
    with pytest.raises(UsageError, match=r"does not fit the architecture: .* missing, such as head\.fc\.bias"):
        load_strict(model, state, "old swin")


def test_layouts_survive_writing(tmp_path: Path) -> None:
    tensors = {f"blocks.{n}.w": ((2, 3), "float32") for n in (0, 1, 2, 5)}
    tensors |= {"n": ((), "int64"), "stages.0.blocks.1.b": ((3,), "float32")}
    layout = Layout("rb/x", (1.0, -0.5), tensors)
    layout.write(tmp_path / "x.txt")
    assert read(tmp_path / "x.txt") == layout
    assert re.search(r"blocks\.\[0-2,5\]\.w 2x3", (tmp_path / "x.txt").read_text())
