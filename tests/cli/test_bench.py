"""`vitattack bench` as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Here

TEXT = """\
schema: 1
title: Two attacks
source: us
data: cifar10-demo[:8]
threats: [linf:8/255]
models: [tiny-vit, {label: theirs, published: true}]
attacks: [fgsm, random]
defaults: {batch_size: 8}
reference:
  - {model: tiny-vit, attack: fgsm, value: 50, n: 1000}
  - {model: theirs, attack: fgsm, value: 52.5, n: 1000}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "two.yaml"
    path.write_text(TEXT)
    return path


def test_a_plan_builds_attacks_and_runs_nothing(file: Path, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from vitattack.cli.main import cli\n"
        "cli.main(['bench'], standalone_mode=False, prog_name='vitattack')\n"
        "assert 'torch' not in sys.modules\n"
        "for words in (sys.argv[1:], [*sys.argv[1:], '--json'], ['bench', 'demo', '--plan', '--throughput', '1T']):\n"
        "    cli.main(words, standalone_mode=False, prog_name='vitattack')\n"
        "for name in ('timm', 'torchvision', 'pandas', 'ray'):\n"
        "    assert name not in sys.modules, name\n"
    )
    words = ["bench", str(file), "--plan", "--throughput", "1T", "--out", str(tmp_path / "runs")]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "tiny-vit, fgsm" in done.stdout and "2 cells to run" in done.stdout
    assert not (tmp_path / "runs").exists()


def test_the_list_counts_in_numbers(here: Here) -> None:
    listed = {one["name"]: one for one in json.loads(here("bench", "--json").stdout)["benchmarks"]}
    assert listed["demo"]["models"] > 1 and listed["demo"]["attacks"] > 1


def test_run_then_stored_then_one_form_after_the_other(here: Here, file: Path, tmp_path: Path) -> None:
    words = ("bench", str(file), "--out", str(tmp_path / "runs"))
    first = here(*words, "--json", "--save", str(tmp_path / "saved"))
    assert first.returncode == 0, first.stderr
    content = json.loads(first.stdout)
    assert content["schema"] == 1 and content["file"] == str(file)
    cell = next(c for c in content["cells"] if (c["model"], c["attack"]) == ("tiny-vit", "fgsm"))
    assert {"model", "attack", "threat", "measured", "low", "high", "published", "source", "n", "status"} <= cell.keys()
    assert cell["n"] == 8 and cell["published"] == 0.5 and cell["status"] == "ok"
    theirs = next(c for c in content["cells"] if (c["model"], c["attack"]) == ("theirs", "fgsm"))
    assert theirs["measured"] is None and theirs["published"] == 0.525 and theirs["status"] == "published"
    assert {p.suffix for p in (tmp_path / "saved").iterdir()} == {".md", ".tex", ".csv", ".txt", ".json", ".parquet"}
    again = here(*words, "--json")
    assert json.loads(again.stdout)["cells"] == content["cells"] and "to run" not in again.stderr
    same = ("--data", "cifar10-demo[:8]", "--batch-size", "8", "--threads", "1", "--out", str(tmp_path / "runs"))
    evaluated = here("eval", "tiny-vit", "fgsm", *same)
    assert "from the store" in evaluated.stderr  # one store for both commands
    planned = here(*words, "--plan", "--throughput", "1T", "--json")
    assert {c["state"] for c in json.loads(planned.stdout)["cells"]} == {"stored", "published"}
    for form, sign in (("md", "| tiny-vit |"), ("latex", "\\toprule"), ("csv", "tiny-vit,fgsm"), ("table", "tiny-vit")):
        shown = here(*words, "--format", form)
        assert shown.returncode == 0 and sign in shown.stdout, shown.stderr


def test_a_stored_benchmark_is_shown_without_torch(here: Here, file: Path, tmp_path: Path) -> None:
    words = ["bench", str(file), "--out", str(tmp_path / "runs"), "--quiet"]
    first = here(*words)
    assert first.returncode == 0, first.stderr
    code = (
        "import sys\n"
        "from vitattack.cli.main import cli\n"
        "cli.main(sys.argv[1:], standalone_mode=False, prog_name='vitattack')\n"
        "for name in ('torch', 'timm', 'pandas', 'numpy'):\n"
        "    assert name not in sys.modules, name\n"
    )
    again = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert again.returncode == 0 and again.stdout == first.stdout, again.stderr


def test_a_failing_cell_fails_alone_and_the_same_command_retries_it(here: Here, file: Path, tmp_path: Path) -> None:
    weights = tmp_path / "broken.safetensors"
    weights.write_bytes(b"no weights")
    row = f"{{model: {weights}, label: mine, arch: small:tiny_vit_32, normalize: cifar10}}"
    file.write_text(TEXT.replace("[tiny-vit,", f"[{row}, tiny-vit,"))
    words = ("bench", str(file), "--out", str(tmp_path / "runs"), "--skip", "random")
    first = here(*words, "--json")
    assert first.returncode == 1
    states = {c["model"]: c["status"] for c in json.loads(first.stdout)["cells"] if c["attack"] == "fgsm"}
    assert states == {"mine": "failed", "tiny-vit": "ok", "theirs": "published"}
    from vitattack.core.assets import EMBEDDED
    from vitattack.models.zoo.catalogue import zoo_entries

    source = zoo_entries()["tiny-vit"].weights
    assert source is not None and source.file is not None
    weights.write_bytes((EMBEDDED / source.file).read_bytes())
    second = here(*words, "--json")
    assert second.returncode == 0, second.stderr
    assert "1 jobs to run" in second.stderr
    assert {c["status"] for c in json.loads(second.stdout)["cells"] if c["attack"] == "fgsm"} == {"ok", "published"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--only", "nobody"), "--only 'nobody' names no cell"),
        (("--throughput", "1T"), "add --plan"),
        (("--calibrate",), "add --plan"),
        (("--plan", "--calibrate", "--throughput", "1T"), "give one"),
        (("--plan", "--throughput", "quick"), "write 20T or 300G"),
        (("--num-gpus", "1"), "add --executor ray"),
        (("--address", "auto"), "add --executor ray"),
        (("--shards", "0"), "--shards"),
        (("--device", "abacus"), "device 'abacus' is not understood"),
        (("--plan", "--save", "x"), "--save is for results"),
        (("--save", "/dev/null/x"), "cannot write to --save '/dev/null/x'"),
    ],
)
def test_wrong_options_are_told_in_one_line(here: Here, file: Path, words: tuple[str, ...], said: str) -> None:
    done = here("bench", str(file), *words)
    assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


def test_a_wrong_file_is_told_with_its_line(here: Here, file: Path) -> None:
    file.write_text(TEXT.replace("random", "rendom"))
    done = here("bench", str(file))
    assert done.returncode == 2
    assert done.stderr.startswith(f"vitattack: {file}:7: unknown attack 'rendom': did you mean random")


def test_calibration_measures_first(here: Here, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitattack.bench.plan import throughput

    monkeypatch.setenv("VITATTACK_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(throughput, "SECONDS", 0.0)
    words = ("bench", str(file), "--plan", "--json", "--device", "cpu", "--out", str(tmp_path / "none"))
    assert json.loads(here(*words, "--throughput", "1T").stdout)["hours"] > 0  # nothing is measured
    first = here(*words)
    assert "measured now and remembered" in first.stderr and json.loads(first.stdout)["hours"] > 0
    assert "measured now" not in here(*words).stderr
    done = here(*words, "--calibrate")
    assert done.returncode == 0 and "tiny-vit: " in done.stderr
    assert json.loads(done.stdout)["hours"] > 0
    assert json.loads(here(*words).stdout)["hours"] == json.loads(done.stdout)["hours"]  # remembered
