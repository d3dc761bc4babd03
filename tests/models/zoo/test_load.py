"""Models by their texts, and the file that names them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from vitattack.core.assets import EMBEDDED, ZOO_FILE
from vitattack.core.errors import UsageError
from vitattack.models.architectures.build import build_architecture
from vitattack.models.architectures.small import SMALL
from vitattack.models.normalise import NORMALISERS
from vitattack.models.victim import as_victim, check_pixels, frozen
from vitattack.models.zoo.catalogue import read_zoo_file, zoo_entries
from vitattack.models.zoo.figures import figures_of
from vitattack.models.zoo.file_options import FileOptions
from vitattack.models.zoo.load import declared_normaliser, load_model

CPU = torch.device("cpu")


EMBEDDED_MODELS = [name for name, e in zoo_entries().items() if e.weights and "embedded" in e.weights.mirrors]


@pytest.mark.parametrize("name", EMBEDDED_MODELS)
def test_every_embedded_model_loads_and_its_file_is_pinned(name: str) -> None:
    entry = zoo_entries()[name]
    loaded = load_model(name, CPU)
    assert loaded.victim.num_classes == entry.num_classes and not loaded.victim.training
    assert entry.weights is not None and entry.weights.file is not None
    path = EMBEDDED / entry.weights.file
    assert path.stat().st_size == entry.weights.size < 5_000_000
    assert {p.dtype for p in loaded.victim.parameters()} == {torch.float32}


def test_normalisation_is_inside() -> None:
    victim = load_model("tiny-vit", CPU).victim
    x = torch.rand(2, 3, 32, 32)
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in NORMALISERS["cifar10"] or ())
    with torch.no_grad():
        assert torch.equal(victim(x), victim.model((x - mean) / std))


def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "w.safetensors"
    save_file(SMALL["tiny_vit_32"](embed_dim=32, depth=1, num_heads=2).state_dict(), path)
    return path


def test_the_size_of_a_checkpoint_of_ones_own_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "own.safetensors"
    save_file(SMALL["tiny_vit_32"]().state_dict(), path)
    record = load_model(str(path), CPU, FileOptions(arch="small:tiny_vit_32", normalize="none")).sized_record
    known = figures_of(zoo_entries()["tiny-vit"])
    assert known is not None and (record["parameters"], record["flops"]) == (known.parameters, known.flops)


def test_a_checkpoint_file_needs_its_architecture_and_normalisation(tmp_path: Path) -> None:
    path = checkpoint(tmp_path)
    kwargs = {"embed_dim": 32, "depth": 1, "num_heads": 2}
    for options, message in (
        (FileOptions(), "does not say its architecture: add --arch"),
        (FileOptions(arch="small:tiny_vit_32"), "does not say how it normalises: add --normalize"),
        (FileOptions(arch="small:tiny_vit", normalize="none"), "did you mean small:tiny_vit_32"),
        (FileOptions(arch="vit_tinny_patch16_224", normalize="none"), "did you mean vit_tiny_patch16_224"),
        (FileOptions(arch="small:tiny_vit_32", normalize="none"), "does not fit the architecture"),
        (FileOptions(arch="small:tiny_vit_32", arch_kwargs={"heads": 1}, normalize="none"), "does not take these"),
        (FileOptions(arch="small:tiny_vit_32", arch_kwargs=kwargs, normalize="cifar"), "normalize 'cifar'"),
        (FileOptions(arch="small:tiny_vit_32", arch_kwargs=kwargs, normalize="0.5/0"), "normalize '0.5/0'"),
    ):
        with pytest.raises(UsageError, match=message) as caught:
            load_model(str(path), CPU, options)
        assert "\n" not in str(caught.value)
    loaded = load_model(str(path), CPU, FileOptions(arch="small:tiny_vit_32", arch_kwargs=kwargs, normalize="cifar10"))
    assert loaded.victim.num_classes == 10 and loaded.victim.input_size == 32


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tiny-vitt", "unknown model 'tiny-vitt': did you mean tiny-vit"),
        ("nowhere/w.pt", "does not exist"),
        ("timm:vit_tiny_patch16_224", r"names no weights: write timm:vit_tiny_patch16_224\.TAG with one of augreg"),
        ("timm:vit_tiny_patch16_224.mine", "has no weights 'mine'"),
        ("timm:vit_tinny_patch16_224.a", "did you mean vit_tiny_patch16_224"),
    ],
)
def test_wrong_models_are_answered_with_the_fix(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load_model(text, CPU)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k", "hf-hub:nobody/nothing"])
def test_without_network_one_line_says_what_to_do(text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UsageError, match="cannot fetch .* connect and run again, or give a local file") as caught:
        load_model(text, CPU)
    assert "\n" not in str(caught.value)


ENTRY = """
schema: 1
models:
  - id: a
    summary: s
    arch: small:tiny_vit_32
    num_classes: 10
    input: 32
    dataset: cifar10
    weights: {from: [embedded], file: a.safetensors, sha256: "HASH"}
""".replace("HASH", "0" * 64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("    summary: s", "    sumary: s"), "unknown key 'sumary': did you mean summary"),
        (("    arch: small:tiny_vit_32\n", ""), r"model 1 \(a\): arch is missing"),
        (("from: [embedded]", "from: embeded"), "did you mean embedded"),
        ((f', sha256: "{"0" * 64}"', ""), "need file and sha256"),
        (("schema: 1", "schema: 2"), "is no zoo file"),
        (("  - id: a", "  - id: !!python/object:os.system a"), "cannot read the zoo file"),
        (
            ("    dataset: cifar10", "    dataset: cifar10\n    normalize: {mean: [0.5]}"),
            "normalize needs mean and std",
        ),
        ((" summary: s", " summary: 5"), "summary is 5, where str belongs"),
        ((" summary: s", ' summary: "\\e[31mred"'), "summary is .*, where printable text belongs"),
        (("  - id: a", "  - id: [a]"), r"id is \['a'\], where str belongs"),
        (("  - id: a", '  - id: "a\\nb"'), "id must be one line"),
        (("num_classes: 10", "num_classes: ten"), "num_classes is 'ten', where int belongs"),
        (("num_classes: 10", "num_classes: 0"), "num_classes must be 1 or more"),
        (("input: 32", "input: true"), "input is True, where int belongs"),
        (("input: 32", "input: 100000"), "input 1 to 8192 px"),
        (
            (" summary: s", " summary: s\n    arch_kwargs: [depth]"),
            r"arch_kwargs is .*, where dict\[str, Any\] belongs",
        ),
        ((" summary: s", " summary: s\n    adapter: [1]"), r"adapter is \(1,\), where tuple\[str, ...\] belongs"),
        ((" summary: s", " summary: s\n    unverified: 7"), "unverified is 7, where"),
        ((" summary: s", " summary: s\n    normalize: {mean: [0.5], std: [0]}"), "std above 0"),
        ((" summary: s", " summary: s\n    normalize: {mean: 0.5, std: 0.5}"), "lists of 1 or 3 numbers"),
        ((" summary: s", " summary: s\n    normalize: {mean: [.nan], std: [1]}"), "lists of 1 or 3 numbers"),
        (
            (" summary: s", " summary: s\n    reported: [{metric: clean, value: high, n: 1, source: s}]"),
            "reported: value is 'high', where float belongs",
        ),
    ],
)
def test_mistakes_in_a_zoo_file_are_named(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    path = tmp_path / "zoo.yaml"
    assert change[0] in ENTRY
    path.write_text(ENTRY.replace(*change))
    with pytest.raises(UsageError, match=message) as caught:
        read_zoo_file(path)
    assert "\n" not in str(caught.value)
    assert ZOO_FILE.is_file()


def test_a_name_of_any_length_is_answered_in_one_short_line() -> None:
    with pytest.raises(UsageError) as caught:
        load_model("nothing\n" + "x" * 5000, CPU)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000


def test_pixels_are_checked_with_a_tolerance() -> None:
    x = torch.rand(4, 3, 2, 2)
    assert check_pixels(x, "images") == (x, 0)
    x[1, 0, 0, 0], x[2, 0, 0, 0] = -3e-8, 1 + 2e-7
    nudged, count = check_pixels(x, "images")
    assert count == 2 and float(nudged.min()) >= 0 and float(nudged.max()) <= 1
    with pytest.raises(UsageError, match="need .*: divide by 255"):
        check_pixels(torch.rand(2, 3, 2, 2) * 255, "images")
    with pytest.raises(UsageError, match="undo their normalisation"):
        check_pixels(torch.randn(8, 3, 2, 2), "images")
    with pytest.raises(UsageError, match="NaN"):
        check_pixels(torch.full((1, 3, 2, 2), torch.nan), "images")


def test_modules_that_give_no_logits_are_refused() -> None:
    with pytest.raises(UsageError, match=r"returns \(1, 3, 4, 4\) for one image"):
        as_victim(torch.nn.Identity(), torch.zeros(1, 3, 4, 4))


def test_outputs_with_a_logits_field_are_unwrapped() -> None:
    class Output:
        def __init__(self, logits: torch.Tensor) -> None:
            self.logits = logits

    class HubStyle(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Output:
            return Output(x.flatten(1)[:, :7])

    victim = as_victim(HubStyle(), torch.rand(2, 3, 4, 4))
    assert victim.num_classes == 7 and victim(torch.rand(2, 3, 4, 4)).shape == (2, 7)


def test_freezing_is_undone_even_after_an_error() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout())
    net[0].bias.requires_grad_(False)
    net[1].eval()
    with pytest.raises(RuntimeError), frozen(net):
        assert not net.training and not net[0].weight.requires_grad
        raise RuntimeError
    assert net.training and not net[1].training
    assert net[0].weight.requires_grad and not net[0].bias.requires_grad


FAMILIES = """
schema: 1
families:
  f:
    num_classes: 10
    input: 32
    dataset: cifar10
    normalize: cifar10
    arch_kwargs: {num_heads: 2}
    weights: {strip_prefix: "module."}
    protocols:
      aa: {metric: robust, n: null, protocol: AutoAttack, source: a paper}
models:
  - id: a
    family: f
    summary: s
    arch: small:tiny_vit_32
    arch_kwargs: {depth: 1}
    weights: {from: ["gdrive:0123456789"]}
    reported: {aa: 51.5}
"""


def test_entries_take_over_from_their_family(tmp_path: Path) -> None:
    path = tmp_path / "zoo.yaml"
    path.write_text(FAMILIES)
    entry = read_zoo_file(path)["a"]
    assert entry.arch_kwargs == {"num_heads": 2, "depth": 1} and entry.num_classes == 10
    assert entry.weights is not None and entry.weights.strip_prefix == ("module.",)
    assert [(r.metric, r.value, r.n, r.protocol) for r in entry.reported] == [("robust", 51.5, None, "AutoAttack")]
    assert declared_normaliser(entry) == NORMALISERS["cifar10"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("family: f", "family: g"), r"model 1 \(a\): unknown family 'g'"),
        (("families:\n  f:", "families:\n  g:"), "unknown family 'f'"),
        (("reported: {aa: 51.5}", "reported: {ab: 51.5}"), "reported unknown protocol 'ab': did you mean aa"),
        (("reported: {aa: 51.5}", "reported: 51.5"), "must be a list, or a mapping"),
        (("normalize: cifar10", "normalize: cifar"), "unknown normalisation 'cifar': did you mean cifar10"),
        (("arch: small:tiny_vit_32", "arch: null"), "without arch, notes must say why"),
        (("    input: 32\n", ""), "input is missing"),
    ],
)
def test_mistakes_in_families_are_named(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    path = tmp_path / "zoo.yaml"
    assert change[0] in FAMILIES
    path.write_text(FAMILIES.replace(*change))
    with pytest.raises(UsageError, match=message) as caught:
        read_zoo_file(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vitwrn2025/vit_b_2-2000/cifar10-linf", "are not public, the zoo holds its published numbers: choose another"),
        (
            "mimir/vit_b_cifar10",
            "have no direct address, .* from https://drive.google.com/drive/folders/.* give FILE --like mimir",
        ),
        ("singh/eps8", "from https://.* and give FILE with --arch and --normalize"),
        ("robustvlm/FARE1-ViT-B-32-openai", "cannot be built by this version .*image tower alone"),
        ("s000/vit_b_2-2000/cifar10-linf", "was renamed: write vitwrn2025/vit_b_2-2000/cifar10-linf$"),
        ("s002/TRADES+AAS-AT/cifar100", "was renamed: write aas2024/TRADES.AAS-AT/cifar100$"),
        ("s004/tora_vit_b_16-0.5", "was renamed: write tora2023/tora_vit_b_16-0.5$"),
        ("rb/Liu2023Comprehensive_Swin-C", "unknown model .* did you mean rb/Liu2023Comprehensive_Swin"),
    ],
)
def test_entries_that_cannot_be_loaded_say_why(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load_model(name, CPU)
    assert "\n" not in str(caught.value)


def test_a_file_with_classes_and_an_adapter(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    model = build_architecture("vit_tiny_patch4_32", {"num_classes": 7, "depth": 1})
    wrapped = {"0.mean": torch.full((3,), 0.5), "0.std": torch.full((3,), 0.5)}
    save_file({**wrapped, **{f"1.{name}": t for name, t in model.state_dict().items()}}, path)
    options = FileOptions(
        arch="vit_tiny_patch4_32", arch_kwargs={"depth": 1}, num_classes=7, normalize="half", adapter="normaliser"
    )
    victim = load_model(str(path), CPU, options).victim
    assert victim.num_classes == 7 and victim.input_size == 32
    x = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(victim(x), model.eval()((x - 0.5) / 0.5))
    for change, message in (
        ({"adapter": "normalizer"}, "unknown adapter 'normalizer': did you mean normaliser"),
        ({"normalize": "imagenet"}, "normalises with 0.mean or std 0.5, 0.5, 0.5, which is not the declared one"),
        ({"arch_kwargs": {"depth": 1, "num_classes": 8}}, "--num-classes says 7, --arch-kwargs 8: give one of them"),
        ({"num_classes": 8}, "does not fit the architecture: head"),
    ):
        with pytest.raises(UsageError, match=message):
            load_model(str(path), CPU, replace(options, **change))


def test_a_file_fetched_by_hand_is_read_as_its_entry_says(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pth"
    model = build_architecture("vit_tiny_patch2_32", {"global_pool": "avg"})
    torch.save({"model_state_dict": {f"module.base_model.{n}": t for n, t in model.state_dict().items()}}, path)
    loaded = load_model(str(path), CPU, FileOptions(like="mimir/vit_t_cifar10"))
    assert loaded.victim.name == str(path) and not loaded.victim.normalises
    assert loaded.entry is not None and loaded.entry.reported[0].value == 84.82
    x = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(loaded.victim(x), model.eval()(x))
    for options, message in (
        (FileOptions(like="mimir/vit_x_cifar10"), "did you mean mimir/vit_"),
        (FileOptions(like="mimir/vit_t_cifar10", arch="x"), "drop the other options"),
        (FileOptions(like="mimir/vit_s_cifar10"), "does not fit the architecture"),
        (FileOptions(like="robustvlm/FARE1-ViT-B-32-openai"), "cannot be built"),
    ):
        with pytest.raises(UsageError, match=message):
            load_model(str(path), CPU, options)
    with pytest.raises(UsageError, match="--like describes a checkpoint file, 'tiny-vit' is none"):
        load_model("tiny-vit", CPU, FileOptions(like="tiny-vit"))
