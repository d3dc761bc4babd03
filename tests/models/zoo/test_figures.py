"""Recorded figures of models are those that are counted."""

from __future__ import annotations

import subprocess
import sys

import pytest

from vitattack.models.zoo.catalogue import zoo_entries
from vitattack.models.zoo.count_figures import count_figures
from vitattack.models.zoo.figures import figures_of, recorded_figures

AGAIN = "run python benchmarks/record_model_figures.py"
# One of every family of architectures that is cheap to build.
SAMPLE = ("tiny-vit", "tiny-cnn-standard", "rb/Debenedetti2022Light_XCiT-S12/cifar10", "timm:resnet50.a1_in1k")


@pytest.mark.parametrize("name", SAMPLE)
def test_figures_of_a_sample_are_as_recorded(name: str) -> None:
    assert recorded_figures()[name] == count_figures(zoo_entries()[name]), AGAIN


def test_every_model_that_can_be_built_has_figures() -> None:
    shipped = [entry for entry in zoo_entries().values() if entry.arch is not None]
    assert set(recorded_figures()) == {entry.id for entry in shipped}, AGAIN
    for entry in shipped:
        figures = figures_of(entry)
        # a gradient with respect to the image costs about a forward; attention pays for both of its factors
        assert figures is not None and 0.9 < figures.backward / figures.flops < 1.3, (entry.id, figures)


def test_figures_are_known_without_torch() -> None:
    code = (
        "import sys; from vitattack.models.zoo.catalogue import zoo_entry; from vitattack.report.models import entry_json;"
        "from vitattack.models.zoo.figures import figures_of; entry = zoo_entry('tiny-vit');"
        "assert len(entry_json(entry, figures_of(entry))['figures']['attention']) == 6;"
        "assert not {'torch', 'timm'} & set(sys.modules), 'slow'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
