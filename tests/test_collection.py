"""The suite collects without the packages that it compares with or that only an extra installs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OPTIONAL = (
    "accelerate",
    "eagerpy",
    "foolbox",
    "nbclient",
    "pyautoattack",
    "ray",
    "robustbench",
    "tensorboard",
    "torchattacks",
    "transformers",
    "wandb",
)


@pytest.mark.slow
def test_every_module_collects_without_the_optional_packages() -> None:
    code = (
        "import sys, pytest\n"
        f"sys.modules.update(dict.fromkeys({OPTIONAL!r}))\n"  # None makes an import raise ModuleNotFoundError
        "sys.exit(pytest.main(['tests', '--collect-only', '-q', '-p', 'no:cacheprovider']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
