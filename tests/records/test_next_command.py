"""Commands that doubts name can be run as they are printed."""

from __future__ import annotations

import shlex
from pathlib import Path

import torch

import vitattack
from tests.conftest import tiny_vit, toy_pictures
from vitattack.evaluation.setup import Setup
from vitattack.models.zoo.file_options import FileOptions
from vitattack.records.job import Job
from vitattack.records.next_command import given_as

JOB = Job("my vit.pt", "auto", "linf:8/255", "cifar10-demo[:12]", "w", "p")


def test_a_file_is_named_with_its_options() -> None:
    options = FileOptions(arch="small:tiny_vit_32", arch_kwargs={"depth": 2}, normalize="cifar10", unsafe_pickle=True)
    with given_as(Setup(options=options, data_dir=Path("my data")).given("my vit.pt")):
        words = shlex.split(JOB.next_run("square(queries=20)").removeprefix("next: "))
        assert shlex.split(JOB.next_diagnosis)[1:4] == ["vitattack", "diagnose-softmax", "my vit.pt"]
    assert words[:4] == ["vitattack", "eval", "my vit.pt", "square(queries=20)"]
    found = dict(zip(words[4::2], words[5::2], strict=False))
    assert found["--arch"] == "small:tiny_vit_32" and found["--arch-kwargs"] == '{"depth": 2}'
    assert "--unsafe-pickle" in words and "my data" in words and words[-1] == "cifar10-demo[:12]"


def test_objects_are_attacked_from_python() -> None:
    with given_as(Setup().given(tiny_vit())):
        assert JOB.next_run("pgd") == (
            'next: vitattack.evaluate(model, "pgd", threat="linf:8/255", data="cifar10-demo[:12]")'
        )
    with given_as(Setup(data=(torch.zeros(1), torch.zeros(1))).given("tiny-vit")):
        assert JOB.next_run("pgd") == 'next: vitattack.evaluate("tiny-vit", "pgd", threat="linf:8/255", data=data)'
    assert JOB.next_run("pgd").startswith("next: vitattack eval 'my vit.pt' \"pgd\"")


def test_what_is_printed_for_an_object_runs() -> None:
    victim, x = tiny_vit(), toy_pictures(4)
    with given_as(Setup(data=(x, x)).given(victim)):
        code = JOB.next_run("fgsm").removeprefix("next: ")
    known = {"vitattack": vitattack, "model": victim, "data": (x, torch.zeros(4, dtype=torch.long))}
    assert eval(code, known).results[0].n == 4
