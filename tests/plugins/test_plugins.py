"""A package outside vitattack adds an attack, a loss, a threat and a data set, and everything finds them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
Ran = subprocess.CompletedProcess[str]
BENCH = """\
schema: 1
title: A package's parts
data: noise-demo[:6]
threats: [linf:8/255, brightness]
models: [tiny-vit]
attacks: [bim, pgd(loss=true_logit), brighten]
skip:
  - {attacks: "bim", threats: "brightness*"}
  - {attacks: "pgd*", threats: "brightness*"}
  - {attacks: "brighten", threats: "linf*"}
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package and its entry points, as pip would leave them."""
    site = tmp_path_factory.mktemp("site")
    project = tomllib.loads((HERE / "example" / "pyproject.toml").read_text())["project"]
    shutil.copytree(HERE / "example" / "vitattack_example", site / "vitattack_example")
    about = site / f"vitattack_example-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    lines = [line for group, points in groups for line in (f"[{group}]", *(f"{k} = {v}" for k, v in points.items()))]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return site


@pytest.fixture
def python(installed: Path, tmp_path: Path) -> Callable[..., Ran]:
    environment = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}

    def run(*words: str, cwd: Path = tmp_path) -> Ran:
        return subprocess.run(
            [sys.executable, *words], capture_output=True, text=True, check=False, cwd=cwd, env=environment
        )

    return run


COMMANDS = """
import contextlib, io, json, sys
from vitattack.cli.main import cli
printed = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as stdout:
        cli.main(words, standalone_mode=False, prog_name="vitattack")
    printed.append(stdout.getvalue())
print(json.dumps(printed))
"""


@pytest.fixture
def vitattack(python: Callable[..., Ran]) -> Callable[..., list[str]]:
    """What commands print, one after the other in one process."""

    def run(*commands: str) -> list[str]:
        done = python("-c", COMMANDS, json.dumps([shlex.split(command) for command in commands]))
        assert done.returncode == 0, done.stderr
        printed: list[str] = json.loads(done.stdout)
        return printed

    return run


def test_eval_runs_them(vitattack: Callable[..., list[str]]) -> None:
    words = "--data noise-demo --limit 8 --json --threads 1"
    bim, brighten = vitattack(
        f"eval tiny-vit 'bim(loss=true_logit)' {words}",
        f"eval tiny-vit brighten --threat brightness:0.2 {words}",
    )
    content = json.loads(bim)
    assert content["attacks"][0]["attack"] == "bim(loss=true_logit)" and content["n"] == 8
    content = json.loads(brighten)
    assert content["threat"] == "brightness:0.2" and content["attacks"][0]["violations"] == 0


def test_benchmarks_price_and_run_them(vitattack: Callable[..., list[str]], tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(BENCH)
    planned, run = vitattack("bench b.yaml --plan --throughput 1T --json", "bench b.yaml --out runs --json")
    cells = json.loads(planned)["cells"]
    passes = {cell["attack"]: (cell["forwards"], cell["backwards"]) for cell in cells if cell["state"] == "to run"}
    assert passes == {"bim": (13, 10), "pgd(loss=true_logit)": (23, 20), "brighten": (13, 0)}
    assert all(cell["n"] == 6 for cell in cells)
    states = {cell["attack"]: cell["status"] for cell in json.loads(run)["cells"] if cell["measured"] is not None}
    assert states == dict.fromkeys(("clean", *passes), "ok")


def test_lists_show_them(vitattack: Callable[..., list[str]]) -> None:
    listed, info, data = vitattack("attacks list --json", "attacks info pgd", "data list")
    attacks = {one["name"]: one for one in json.loads(listed)}
    assert attacks["bim"]["forwards"] == 11 and attacks["brighten"]["threats"] == ["brightness"]
    assert "true_logit" in info and "noise-demo" in data


@pytest.mark.slow
def test_the_contract_tests_take_them_in(python: Callable[..., Ran]) -> None:
    words = ("-m", "pytest", "-rp", "-p", "no:cacheprovider", "tests/attacks/test_contract.py", "-k", "bim or brighten")
    done = python(*words, cwd=HERE.parents[1])
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("bim") >= 10 and done.stdout.count("brighten") >= 10
