"""The notebooks and scripts of `examples/` run as they are, on a few images."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SCRIPTS = {
    "plain_pytorch": (("--images", "50", "--epochs", "1"), ()),
    "with_lightning": (("--images", "50", "--epochs", "1"), ("lightning", "pytorch_lightning")),
    "with_transformers": (("--images", "8"), ("transformers",)),
}
NOTEBOOKS = ("evaluate_my_model", "is_this_defence_real", "aas_table_3")

pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="needs the checkout")


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "VITATTACK_HOME": str(home), "OMP_NUM_THREADS": "1"}


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == SCRIPTS.keys()
    assert {path.stem for path in EXAMPLES.glob("*.ipynb")} == set(NOTEBOOKS)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "plain_pytorch" else pytest.mark.slow) for name in SCRIPTS]
)
def test_scripts(name: str, tmp_path: Path) -> None:
    words, packages = SCRIPTS[name]
    if packages and not any(map(find_spec, packages)):
        pytest.skip(f"needs {packages[0]}")
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *words]
    done = subprocess.run(command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"Evaluation\(.*n=\d+", done.stdout), done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks(name: str, tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    for cell in notebook.cells:
        cell.source = re.sub(r"^N = \d+", "N = 6", cell.source, flags=re.MULTILINE)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    where = {"metadata": {"path": str(tmp_path)}}
    client = nbclient.NotebookClient(notebook, timeout=600, startup_timeout=600, resources=where)
    client.execute(env=environment(tmp_path))
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert not [output for output in shown if output.output_type == "error"]
    assert sum("text/html" in output.get("data", {}) for output in shown) >= 2


def test_code_of_notebooks_is_understood() -> None:
    """In every suite, without a kernel: the code compiles and names what exists."""
    import json

    import vitattack

    for name in NOTEBOOKS:
        content = json.loads((EXAMPLES / f"{name}.ipynb").read_text())
        code = "\n".join("".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code")
        compile(code, name, "exec")
        assert set(re.findall(r"\bvitattack\.(\w+)\(", code)) <= set(vitattack.__all__)
