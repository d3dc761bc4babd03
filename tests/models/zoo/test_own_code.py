"""Models of a user's own class, with and without a checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.zoo.own_models import SOURCE
from vitattack.core.errors import UsageError
from vitattack.core.progress import Listener, listening
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.digest import fingerprint
from vitattack.models.victim import frozen
from vitattack.models.zoo.file_options import FileOptions
from vitattack.models.zoo.load import load_model
from vitattack.models.zoo.names import check_model_name

CPU = torch.device("cpu")
PLAIN = FileOptions(normalize="none")


class Heard(Listener):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "__init__.py").write_text("")
    (tmp_path / "my_package" / "nets.py").write_text(SOURCE)
    return tmp_path


@pytest.mark.parametrize("text", ["mine.py:make_model", "mine.py:MyViT", "mine.py:a_module", "my_package.nets:MyViT"])
def test_a_function_a_class_and_a_module_are_models(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    heard = Heard()
    with listening(heard):
        loaded = load_model(text, CPU, PLAIN)
    assert (loaded.victim.num_classes, loaded.victim.input_size, loaded.record["source"]) == (10, 32, "code")
    assert heard.lines == [f"{text}: this runs your code"]
    assert capsys.readouterr().out == ""  # what the code prints is no result
    with frozen(loaded.victim):
        assert len(attention_layers(loaded.victim, loaded.victim.grey(2)).layers) == 2


def test_arguments_reach_the_code_and_the_same_code_is_the_same_model() -> None:
    options = FileOptions(normalize="half", arch_kwargs={"depth": 1}, num_classes=7)
    marks = []
    for _ in range(2):
        victim = load_model("mine.py:make_model", CPU, options).victim
        assert victim.num_classes == 7 and victim.mean.flatten().tolist() == [0.5] * 3
        marks.append(fingerprint(victim))
    assert marks[0] == marks[1] and marks[0].unknown == ()
    Path("mine.py").write_text(SOURCE.replace("x = x + block(x)", "x = x - block(x)"))
    assert fingerprint(load_model("mine.py:make_model", CPU, options).victim) != marks[0]


def test_a_file_changed_within_a_second_to_one_of_the_same_size_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python takes such a file for the one that it compiled before."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    options = FileOptions(normalize="half", arch_kwargs={"depth": 1}, num_classes=7)
    marks = set()
    for sign in "+-":
        Path("mine.py").write_text(SOURCE.replace("x = x + block(x)", f"x = x {sign} block(x)"))
        os.utime("mine.py", (1, 1))
        marks.add(fingerprint(load_model("mine.py:make_model", CPU, options).victim).digest)
    assert len(marks) == 2


def test_a_checkpoint_is_loaded_into_it(own: Path) -> None:
    made: Any = load_model("mine.py:MyViT", CPU, FileOptions(normalize="none", arch_kwargs={"px": 64})).victim.model
    made.head.bias.data += 1
    torch.save({"state_dict": {f"model.{k}": v for k, v in made.state_dict().items()}}, "w.ckpt")
    options = FileOptions(model_from="mine.py:MyViT", normalize="none", arch_kwargs={"px": 64})
    loaded = load_model("w.ckpt", CPU, options)
    x = torch.rand(2, 3, 64, 64)
    with frozen(made), torch.no_grad():
        assert torch.equal(loaded.victim(x), made(x)) and loaded.victim.input_size == 64


def test_a_model_of_any_size_needs_the_size() -> None:
    with pytest.raises(UsageError, match=r"takes images of several sizes \(28, 32, 64, 96...\): add --input-size"):
        load_model("mine.py:Any", CPU, PLAIN)
    victim = load_model("mine.py:Any", CPU, FileOptions(normalize="none", input_size="40")).victim
    assert (victim.input_size, victim.num_classes) == (40, 3)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("mine.py:broken", PLAIN, r"'mine.py:broken' failed \(RuntimeError: no such\): --debug shows where"),
        ("mine.py:number", PLAIN, "gives a int: let it return a torch.nn.Module"),
        ("mine.py:make_model", FileOptions(normalize="none", arch_kwargs={"x": 1}), r"failed \(TypeError: "),
        ("mine.py:make_modell", PLAIN, r"unknown name in mine.py 'make_modell': did you mean make_model"),
        ("mine.py:make_model", FileOptions(), "does not say how it normalises: add --normalize none if the model"),
        ("mine.py:MyViT", FileOptions(normalize="none", arch="x"), "--arch describes a checkpoint file"),
        ("mine.py:MyViT", FileOptions(normalize="none", input_size="3x"), "input size '3x' is not understood"),
        (
            "mine.py:MyViT",
            FileOptions(normalize="none", input_size="64"),
            "gives no logits .* 64 x 64 px: correct --input-size",
        ),
        ("absent.py:make_model", PLAIN, "the file 'absent.py' does not exist: check the path"),
        ("no_such_module:make", PLAIN, "there is no module 'no_such_module': check its name"),
        ("my_package.other:make", PLAIN, r"failed \(ModuleNotFoundError: "),
        ("syntax.py:make", PLAIN, r"'syntax.py' is no Python that can be read \(.*, line 2\)"),
    ],
)
def test_mistakes_are_answered_in_one_line(text: str, options: FileOptions, message: str) -> None:
    Path("syntax.py").write_text("x = 1\ndef make(:\n")
    with pytest.raises(UsageError, match=message) as caught:
        load_model(text, CPU, options)
    assert "\n" not in str(caught.value)


def test_code_is_looked_at_without_torch_and_without_running_it(own: Path) -> None:
    code = """
import sys
from vitattack.core.errors import UsageError
from vitattack.models.zoo.file_options import FileOptions
from vitattack.models.zoo.names import check_model_name
plain = FileOptions(normalize="none")
assert check_model_name("mine.py:make_model", plain) == check_model_name("my_package.nets:MyViT", plain) == "code"
for text in ("mine.py:make_modell", "absent.py:x", "absent:x", "timm:x"):
    try:
        check_model_name(text, plain)
    except UsageError as error:
        print(error)
assert not {"torch", "timm", "numpy", "my_package"} & set(sys.modules), "slow"
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert len(done.stdout.splitlines()) == 4 and "imported" not in done.stdout


def test_the_zoo_and_other_prefixes_are_no_modules() -> None:
    assert check_model_name("timm:vit_tiny_patch16_224.x") == "timm" and check_model_name("hf:a/b") == "hub"
