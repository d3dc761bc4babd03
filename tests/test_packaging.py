"""The wheel has the content of the checkout and works without it; versions agree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="needs the checkout")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    shutil.rmtree(ROOT / "build", ignore_errors=True)  # setuptools would pack what modules used to be
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(out),
        str(ROOT),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = out.glob("*.whl")
    return path


def test_every_package_is_listed() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {".".join(p.parent.relative_to(ROOT).parts) for p in (ROOT / "vitattack").rglob("__init__.py")}
    found |= {".".join(("vitattack", *p.parent.relative_to(ROOT).parts)) for p in (ROOT / "cli").rglob("__init__.py")}
    assert listed == found | {"vitattack.assets"}


def test_the_wheel_holds_every_module_and_asset_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = {str(p.relative_to(ROOT)) for p in (ROOT / "vitattack").rglob("*.py")}
    sources |= {f"vitattack/{p.relative_to(ROOT)}" for p in (ROOT / "cli").rglob("*.py")}
    assets = {"vitattack/py.typed", "vitattack/assets/model_zoo.yaml"}
    assets |= {f"vitattack/assets/embedded/{p.name}" for p in (ROOT / "embedded").iterdir()}
    assets |= {f"vitattack/assets/benchmarks/{p.name}" for p in (ROOT / "benchmarks").glob("*.yaml")}
    assets |= {f"vitattack/assets/benchmarks/train/{p.name}" for p in (ROOT / "benchmarks/train").glob("*.yaml")}
    assets |= {str(p.relative_to(ROOT)) for p in (ROOT / "vitattack/report/page/browser").iterdir()}
    assert names == sources | assets
    assert wheel.stat().st_size < 20_000_000


def test_the_wheel_evaluates_the_embedded_model_far_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        "import vitattack, vitattack.cli.main, sys\n"
        f"assert vitattack.__file__.startswith({str(tmp_path)!r}), vitattack.__file__\n"
        f"assert vitattack.cli.main.__file__.startswith({str(tmp_path)!r})\n"
        "print(vitattack.evaluate('tiny-vit', 'fgsm', limit=8, threads=1).n)"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "8", done.stderr


def test_the_citation_has_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_wheel_is_one_that_pypi_takes(wheel: Path) -> None:
    pytest.importorskip("twine")
    command = [sys.executable, "-m", "twine", "check", "--strict", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_workflows_pin_what_they_use_and_test_every_python_that_is_declared() -> None:
    texts = {path.name: path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml")}
    used = [use for text in texts.values() for use in re.findall(r"uses: (.+)", text)]
    assert used and not [use for use in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", use)]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [text.rpartition(" ")[2] for text in project["classifiers"] if re.search(r"Python :: 3\.\d+", text)]
    (matrix,) = re.findall(r"python: \[(.+)\]", texts["ci.yml"])
    assert [version.strip(' "') for version in matrix.split(",")] == declared
    assert project["requires-python"] == f">={declared[0]}"
