"""Rooms that must answer without torch, and the lines they answer with."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODULES = (
    "vitattack",
    "vitattack.core.assets",
    "vitattack.core.errors",
    "vitattack.core.file_hashes",
    "vitattack.core.files",
    "vitattack.core.progress",
    "vitattack.core.registry",
    "vitattack.core.table",
    "vitattack.core.words",
    "vitattack.text.bind",
    "vitattack.text.image_transform",
    "vitattack.text.syntax",
    "vitattack.text.yaml_lines",
    "vitattack.threats.base",
    "vitattack.threats.lp",
    "vitattack.threats.spatial",
    "vitattack.data",
    "vitattack.data.catalogue",
    "vitattack.data.request",
    "vitattack.data.transform",
    "vitattack.report.data",
)


def loaded_by(code: str) -> set[str]:
    """Which of the heavy packages a fresh interpreter has loaded after this code."""
    heavy = "print(*(name for name in ('torch', 'timm', 'pandas', 'numpy', 'huggingface_hub') if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", f"{code}\nimport sys; {heavy}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_importing_loads_nothing_heavy() -> None:
    assert loaded_by("import " + ", ".join(MODULES)) == set()


@pytest.mark.parametrize(
    "text",
    [
        "cifar",
        "cifar10-demo[:0]",
        "cifar10-demo[first]",
        "cifar10-demo[random:1001:0]",
        "cifar10@none",
        "imagenet@nonsense",
        "imagenet-c/fog",
        "imagenet-a/some",
        "folder:nowhere",
        "npz:nowhere.npz",
        "imagenet-classes:nowhere.txt",
    ],
)
def test_data_that_loading_would_refuse_are_refused_without_torch(text: str) -> None:
    from vitattack.core.errors import UsageError
    from vitattack.data import check_data, load_data

    messages = []
    for call in (check_data, load_data):
        with pytest.raises(UsageError) as caught:
            call(text)
        messages.append(str(caught.value))
    assert messages[0] == messages[1] or text.startswith("imagenet-classes:"), "the same words either way"


def test_checking_data_loads_nothing_heavy() -> None:
    code = """
from pathlib import Path
from vitattack.core.errors import UsageError
from vitattack.data import check_data
check_data("cifar10-demo[:10]"), check_data("robustbench-imagenet-5k[:5]")
for text, folder in (("cifar", None), ("folder:nowhere", None), ("imagenet-a", Path("/nowhere")), ("cifar10[", None)):
    try:
        check_data(text, data_dir=folder)
    except UsageError:
        continue
    raise SystemExit(text)
"""
    assert loaded_by(code) == set()


def test_data_list_loads_no_torch() -> None:
    code = "from vitattack.report.data import data_table; data_table(None)"
    assert loaded_by(code) == set()
