"""The command as a new user meets it: output, refusals, interrupts and resuming."""

from __future__ import annotations

import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.cli.conftest import Here
from tests.cli.forked_command import Forked, fork
from tests.cli.long_run import RUN, records_of
from vitattack.attacks.aas import controls
from vitattack.models.architectures.small import SMALL

ENTRY = [sys.executable, "-P", "-m", "vitattack.cli"]


def vitattack(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": "120"}
    return subprocess.run(
        [*ENTRY, *words], cwd=cwd, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


def refused(done: subprocess.CompletedProcess[str], message: str, code: int = 2) -> None:
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("vitattack: ") and message in lines[0], lines[0]


SMALL_RUN = ("--limit", "16", "--batch-size", "4", "--threads", "1", "--quiet")


def test_a_table_then_the_same_table_from_the_store_and_its_json(
    tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    words = ("eval", "tiny-vit", "fgsm", "pgd(steps=4)", "--limit", "16", "--threads", "1")
    first = vitattack(*words, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    for expected in (
        "tiny-vit | linf:8/255 | cifar10-demo[:16] | n = 16 | seed 0",
        "clean",
        "fgsm",
        "worst case",
        "McNemar",
    ):
        assert expected in first.stdout
    second = here(*words)
    assert second.stdout == first.stdout and "from the store" in second.stderr
    as_json = here(*words, "--json")
    content = json.loads(as_json.stdout)
    assert set(content) >= {
        "schema",
        "model",
        "threat",
        "data",
        "n",
        "seed",
        "clean",
        "attacks",
        "worst_case",
        "run",
        "provenance",
    }
    for attack in content["attacks"]:
        assert set(attack) >= {"attack", "robust", "invalid", "fragile", "forwards", "backwards", "seconds"}
        assert set(attack["robust"]) == {"accuracy", "low", "high", "correct"}
        assert 0 <= attack["robust"]["low"] <= attack["robust"]["accuracy"] <= attack["robust"]["high"] <= 1
    stored = json.loads((Path(tmp_path / content["attacks"][0]["run"]) / "result.json").read_text())
    assert stored["robust"] == content["attacks"][0]["robust"]


@pytest.mark.parametrize("form", ["md", "csv", "latex"])
def test_other_forms_hold_the_same_numbers(here: Here, form: str) -> None:
    done = here("eval", "tiny-vit", "fgsm", *SMALL_RUN, "--format", form)
    assert done.returncode == 0
    assert (
        done.stderr.startswith("tiny-vit | linf:8/255") if form == "csv" else done.stderr == ""
    )  # its title and notes
    marks = {"md": "| clean | ", "csv": "clean,", "latex": "clean & "}
    assert marks[form] in done.stdout and "/16" in done.stdout


def test_options_are_read_from_the_environment_and_flags_win(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LIMIT": "4", "THREAT": "linf:1/255", "THREADS": "1"}.items():
        monkeypatch.setenv(f"VITATTACK_{name}", value)
    content = json.loads(here("eval", "tiny-vit", "fgsm", "--limit", "8", "--json").stdout)
    assert content["n"] == 8 and content["threat"] == "linf:1/255"


def test_help_and_version_load_nothing_heavy(tmp_path: Path) -> None:
    for words in (["--help"], ["--version"]):
        code = (
            f"import sys; sys.argv = ['vitattack', *{words!r}]\n"
            "import vitattack.cli.main as m\n"
            "try: m.main()\n"
            "except SystemExit as e: assert not e.code, e.code\n"
            "heavy = {'torch', 'numpy', 'timm', 'pandas', 'rich', 'yaml'} & set(sys.modules)\n"
            "assert not heavy, heavy"
        )
        command = [sys.executable, "-P", "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "words", [["models"], ["attacks"], ["data"], ["models", "info", "tiny-vit"], ["attacks", "info", "gama"]]
)
def test_lists_and_details(here: Here, words: list[str]) -> None:
    done = here(*words)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


def test_every_attack_describes_itself_with_its_cost(here: Here) -> None:
    names = [row["name"] for row in json.loads(here("attacks", "list", "--json").stdout)]
    assert {"fgsm", "fgsm_rs", "pgd", "mim", "cw", "dlr", "gama", "mifpe", "pma", "restarts", "worst"} <= set(names)
    pgd = json.loads(here("attacks", "info", "pgd", "--json").stdout)
    assert (pgd["forwards"], pgd["backwards"]) == (21, 20)
    pma = json.loads(here("attacks", "info", "pma", "--json").stdout)
    assert (pma["forwards"], pma["backwards"]) == (202, 200)
    # the package behind the name spends 7,857 + 1,910; four stages by ours: 101 + 910 + 910 + 5,001 and 100 + 900 + 909
    ours = json.loads(here("attacks", "info", "autoattack", "--json").stdout)
    assert (ours["forwards"], ours["backwards"]) == (6922, 1909)
    least = json.loads(here("attacks", "info", "cw_l2", "--json").stdout)
    assert least["threats"] == ["l2"] and least["forwards"] > 800  # 5 x 200, less what the last search spares


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evall"], "unknown command 'evall': did you mean eval"),
        (["eval", "tiny-vitt"], "unknown model 'tiny-vitt': did you mean tiny-vit"),
        (["eval", "tiny-vit", "pgdd"], "unknown attack 'pgdd': did you mean pgd"),
        (["eval", "tiny-vit", "pgd(steps=x)"], "takes a whole number, not x"),
        (["eval", "--data", "cifar"], "unknown data set 'cifar': did you mean cifar10"),
        (["eval", "--threat", "8"], "names no norm: write linf:8 or l2:8"),
        (["eval", "--threat", "linf:8"], "write linf:8/255 if you mean 8-bit steps"),
        (["eval", "--threat", "8/255"], "write linf:8/255 or l2:8/255"),
        (["eval", "--limit", "0"], "0 is not in the range"),
        (["eval", "--limit", "5", "--subset", "random:5:0"], "exclude each other"),
        (["eval", "--batch-size", "many"], "'many' is not a valid integer"),
        (["eval", "--shard", "2/2"], "write 0/4 for the first of four"),
        (["eval", "--device", "gpu"], "device 'gpu' is not understood"),
        (["eval", "--format", "pdf"], "'pdf' is not one of"),
        (["eval", "--stepz", "5"], "No such option"),
        (["eval", "--data", "cifar10"], "give --data-dir a folder that holds it"),
        (["eval", "--data", "cifar10", "--data-dir", "nowhere"], "give --data-dir a folder with the hub's layout"),
        (["eval", "--arch-kwargs", "{"], "--arch-kwargs is not JSON"),
        (["eval", "nowhere.pt", "--arch", "small:tiny_vit_32", "--normalize", "none"], "'nowhere.pt' does not exist"),
        (["eval", "timm:vit_tiny_patch16_224"], "names no weights: write timm:vit_tiny_patch16_224.TAG with one of"),
        (["eval", "--out", "file/below"], "give another folder with --out"),
        (["models", "info", "tiny"], "unknown model 'tiny': did you mean tiny-vit"),
        (["eval", "pgd"], "'pgd' is an attack: name the model first, as in vitattack eval tiny-vit pgd"),
        (["eval", "--transform", "junk"], "a transform is for folder: data"),
        (["eval", "--arch", "foo"], "--arch describes a checkpoint file, 'tiny-vit' is none: drop it"),
        (["eval", "--calibration", "nowhere"], "for attacks that learn"),
        (["eval", "--controls", "tiny-vit", "fgsm", "--limit", "2"], "--controls belongs to a run of aas"),
        (["eval", "tiny-vit", "aas+fgsm", "--controls", "--perceptual"], "give --perceptual to a run of its own"),
        (["eval", "--threat", "linf:300"], "write linf:8/255"),
        (["eval", "tiny-vit", "mifpe(T=inf)"], "must be finite"),
        (["eval", "tiny-vit", "cosine"], "unknown attack 'cosine'"),
        (["eval", "tiny-vit", "mim(steps=0)"], "0 steps cannot move an image"),
        (["eval", "tiny-vit", "restarts(1000000000, pgd)"], "too few or too many"),
        (["eval", "--threads", "100000"], "100000 is not in the range"),
        (["eval", "x" * 300], "unknown model"),
        (["eval", "--subset", "random:5:" + "9" * 42], "are not understood"),
        (
            ["eval", "tiny-vit", "pgd", "--threat", "spatial"],
            "pgd is not defined for spatial threats: use --threat linf",
        ),
        (["eval", "tiny-vit", "spatial"], "spatial is not defined for linf threats: use --threat spatial"),
        (
            ["eval", "tiny-vit", "spatial", "--threat", "spatial:16"],
            "write spatial, spatial:16px,30deg or spatial:4.17%",
        ),
        (["eval", "tiny-vit", "pgd", "--budget", "passes=500"], "--budget and --until are for auto"),
        (["eval", "tiny-vit", "auto(passes=20)", "--budget", "passes=20"], "pays for no stage"),  # and not: name auto
        (["attacks", "info", "pg"], "unknown attack 'pg': did you mean pgd"),
    ],
)
def test_wrong_words_get_one_line_and_exit_code_2(tmp_path: Path, words: list[str], message: str, here: Here) -> None:
    (tmp_path / "file").write_text("")
    refused(here(*words), message)
    assert not (tmp_path / "runs").exists()


ARCH = (
    "--arch",
    "small:tiny_vit_32",
    "--arch-kwargs",
    '{"embed_dim": 16, "depth": 1, "num_heads": 1}',
    "--normalize",
    "none",
)


def test_checkpoint_files_good_and_bad(tmp_path: Path, here: Here) -> None:
    torch.manual_seed(0)
    state = SMALL["tiny_vit_32"](embed_dim=16, depth=1, num_heads=1).state_dict()
    save_file(state, tmp_path / "good.safetensors")
    save_file(
        {k: v for k, v in state.items() if k != "norm.weight" and k != "fc_norm.weight"}, tmp_path / "short.safetensors"
    )
    (tmp_path / "corrupt.safetensors").write_bytes((tmp_path / "good.safetensors").read_bytes()[:5000])
    (tmp_path / "pickle.pt").write_bytes(pickle.dumps({"model": Path("x")}))
    wide = SMALL["tiny_vit_32"](embed_dim=16, depth=1, num_heads=1, num_classes=7).state_dict()
    save_file(wide, tmp_path / "seven.safetensors")
    for name, message in (
        ("short.safetensors", "1 missing, such as fc_norm.weight"),
        ("corrupt.safetensors", "is not a readable safetensors file"),
        ("pickle.pt", "holds Python objects besides tensors"),
        ("seven.safetensors", "head.bias is (7,) in the file and (10,) in the model"),
    ):
        refused(here("eval", name, "fgsm", *ARCH, *SMALL_RUN), message)
    seven = (*ARCH[:3], '{"embed_dim": 16, "depth": 1, "num_heads": 1, "num_classes": 7}', *ARCH[4:])
    done = here("eval", "seven.safetensors", "fgsm", *seven, *SMALL_RUN)
    refused(
        done, "'seven.safetensors' has 7 classes, 'cifar10-demo[:16]' has 10: choose data the model was trained for"
    )
    done = here("eval", "good.safetensors", "fgsm", *ARCH, *SMALL_RUN, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["n"] == 16, done.stderr


def test_a_misspelt_variable_is_named(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITATTACK_LIMTI", "3")
    refused(here("attacks"), "unknown environment variable 'VITATTACK_LIMTI': did you mean VITATTACK_LIMIT")
    monkeypatch.delenv("VITATTACK_LIMTI")
    monkeypatch.setenv("VITATTACK_DEBUG", "0")
    refused(here("evall"), "unknown command")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("room", [0, 1000])
def test_a_full_standard_output_is_one_line(tmp_path: Path, unbuffered: str, room: int) -> None:
    """Nothing at all, or a part of what is printed, finds room."""
    with (tmp_path / "printed").open("w") as printed:
        done = subprocess.run(
            [*ENTRY, "models", "list", "--json"],
            stdout=printed,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)),
            check=False,
        )
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("vitattack: cannot write the output (File too large)"), done.stderr
    assert done.stderr.count("\n") == 1


def test_aas_with_its_report_and_controls(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls, "CONTROLS", ("fp64",))  # the others search for longer
    attack = "aas(pgd(steps=2), steps=1, restarts=2, rank_steps=2)"
    few = ("--limit", "8", "--calibration", "cifar10-calib[:2]", "--threads", "1", "--quiet")
    words = ("eval", "tiny-vit", attack, *few)
    done = here(*words, "--controls")
    assert done.returncode == 0, done.stderr
    for expected in (
        "RA, scaled-model protocol (CVPR 2024)",
        "false successes",
        "scales 1:",
        "restarts(",
        "fp64(",
        "masking",
    ):
        assert expected in done.stdout
    content = json.loads(here(*words, "--json").stdout)
    assert content["attacks"][0]["referee"]["RA_union_orig"] == content["attacks"][0]["robust"]


def test_debug_shows_where(tmp_path: Path) -> None:
    done = vitattack("eval", "tiny-vitt", "--debug", cwd=tmp_path)
    assert done.returncode != 0 and "Traceback" in done.stderr


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    root = tmp_path_factory.mktemp("whole")
    assert fork(*RUN, cwd=root).wait() == 0
    return records_of(root)


def start_and_wait(root: Path, batches: int) -> Forked:
    """The run in its own process, once some batches are on the disk."""
    process = fork(*RUN, cwd=root)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        files = list(root.glob("runs/*/samples.jsonl"))
        if files and files[0].read_bytes().count(b"\n") >= 4 * batches:
            return process
        assert process.poll() is None, process.stderr
        time.sleep(0.002)
    raise AssertionError("no batch was written in two minutes")


@pytest.mark.parametrize("batches", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_kill_9_and_resume_gives_identical_records(tmp_path: Path, uninterrupted: bytes, batches: int) -> None:
    process = start_and_wait(tmp_path, batches)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    part = records_of(tmp_path)
    assert 0 < len(part) < len(uninterrupted) and uninterrupted.startswith(part[: part.rfind(b"\n") + 1])
    again = fork(*RUN, cwd=tmp_path)
    assert again.wait() == 0, again.stderr
    assert records_of(tmp_path) == uninterrupted


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_say_how_to_go_on(tmp_path: Path, uninterrupted: bytes, number: int, code: int) -> None:
    process = start_and_wait(tmp_path, 2)
    process.send_signal(number)
    assert process.wait(60) == code
    assert "run the same command to resume" in process.stderr and "Traceback" not in process.stderr
    assert fork(*RUN, cwd=tmp_path).wait() == 0
    assert records_of(tmp_path) == uninterrupted


def test_two_shards_side_by_side_give_the_same_records(tmp_path: Path, uninterrupted: bytes) -> None:
    parts = [fork(*RUN, "--shard", f"{k}/2", cwd=tmp_path) for k in range(2)]
    assert [part.wait() for part in parts] == [0, 0]
    assert records_of(tmp_path) == uninterrupted


def test_a_disk_that_fills_up_loses_nothing(tmp_path: Path, uninterrupted: bytes) -> None:
    """A file size limit stands in for the full disk: the write fails half-way through a batch."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))

    full = fork(*RUN, cwd=tmp_path, before=limit)
    assert full.wait() == 1 and full.stderr.startswith("vitattack: ") and len(full.stderr.splitlines()) == 1
    assert "free some space and run the same command to resume" in full.stderr
    assert len(records_of(tmp_path)) <= 3000
    assert fork(*RUN, cwd=tmp_path).wait() == 0
    assert records_of(tmp_path) == uninterrupted


@pytest.mark.parametrize(("given", "seen"), [(None, "passive"), ("active", "active")])
def test_threads_that_wait_leave_the_cores_to_others(given: str | None, seen: str) -> None:
    """Threads of torch that spin while they wait make a run on busy cores ten times slower."""
    code = "import os, sys; sys.argv = ['vitattack', '--version']; from vitattack.cli.main import main\n"
    code += "try: main()\nfinally: print(os.environ.get('OMP_WAIT_POLICY'), 'torch' in sys.modules)"
    kept = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment = kept | ({"OMP_WAIT_POLICY": given} if given else {})
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"{seen} False"
