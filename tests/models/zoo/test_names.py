"""Names of models are checked before torch is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vitattack.core.errors import UsageError
from vitattack.models.zoo.file_options import FileOptions
from vitattack.models.zoo.names import ModelKind, check_model_name

WITHOUT_TORCH = """
import sys
from vitattack.core.errors import UsageError
from vitattack.models.zoo.names import check_model_name
for name in ("tiny-vti", "missing.safetensors", "aas2024/TRADES+AAS-AT/cifar100"):
    try:
        check_model_name(name)
    except UsageError as error:
        print(error)
assert check_model_name("tiny-vit") == "zoo"
assert not {"torch", "timm", "numpy"} & set(sys.modules), "slow"
"""


def test_names_are_checked_without_torch() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], check=True, capture_output=True, text=True)
    unknown, missing, private = done.stdout.splitlines()
    assert unknown.startswith("unknown model 'tiny-vti': did you mean tiny-vit")
    assert missing == "weights file 'missing.safetensors' does not exist: check the path, or name a model of the zoo"
    assert private.startswith("the weights of 'aas2024/TRADES+AAS-AT/cifar100' are not public")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("tiny-vit", "zoo"),
        ("timm:vit_tiny_patch16_224.a", "timm"),
        ("hf-hub:lab/vit", "hub"),
        ("hf:lab/vit", "hub"),
        ("w.pt", "file"),
    ],
)
def test_every_kind_is_told(name: str, kind: ModelKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w.pt").write_bytes(b"")
    options = FileOptions(arch="vit_tiny_patch16_224", normalize="half") if kind == "file" else FileOptions()
    assert check_model_name(name, options) == kind


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pgd", "'pgd' is an attack: name the model first, as in vitattack eval tiny-vit pgd"),
        ("gamma", "unknown model or attack 'gamma': did you mean gama"),
        ("tiny-vti", "unknown model 'tiny-vti': did you mean tiny-vit"),
    ],
)
def test_attacks_in_place_of_a_model_are_recognised(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_model_name(name, attacks=("pgd", "gama"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (FileOptions(), "'w.pt' does not say its architecture: add --arch"),
        (FileOptions(arch="vit_tiny_patch16_224"), "'w.pt' does not say how it normalises: add --normalize"),
        (FileOptions(arch="a", normalize="halve"), "normalize 'halve' is not understood"),
        (FileOptions(arch="a", normalize="half", num_classes=3, arch_kwargs={"num_classes": 4}), "give one of them"),
        (FileOptions(like="tiny-vti"), "unknown model 'tiny-vti': did you mean tiny-vit"),
        (FileOptions(like="tiny-vit", arch="a"), "--like tiny-vit says all there is to say"),
    ],
)
def test_options_of_a_file_are_checked(
    options: FileOptions, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w.pt").write_bytes(b"")
    with pytest.raises(UsageError, match=message):
        check_model_name("w.pt", options)
