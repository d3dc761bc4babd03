"""`vitattack transfer` as a user types it: grammar, output formats, refusals, and a kill in the middle."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Here
from tests.cli.forked_command import fork
from tests.cli.test_cli import refused

RUN = ("--limit", "12", "--batch-size", "4", "--threads", "1", "--quiet")
FAST = "fgsm(stop=never)"


@pytest.mark.parametrize(
    ("words", "sources", "targets", "attack"),
    [
        (["tiny-vit", "tiny-vit-standard", FAST], 2, 2, FAST),
        (["tiny-vit", "--to", "tiny-vit-standard", "tiny-vit-saturated", FAST, *RUN], 1, 2, FAST),
        (["tiny-vit", "--to", "tiny-vit-standard", "--to", "tiny-vit", "--attack", FAST], 1, 2, FAST),
        (["--to=tiny-vit-standard", "--threat", "linf:1/255", "tiny-vit", FAST], 1, 1, FAST),
        (["tiny-vit"], 1, 1, "pgd(stop=never, preset=bhojanapalli2021)"),
        (["tiny-vit", "--protocol", "transferattack"], 1, 1, "mim(stop=never)"),
    ],
)
def test_sources_targets_and_attack_in_any_order(
    here: Here,
    words: list[str],
    sources: int,
    targets: int,
    attack: str,
) -> None:
    done = here("transfer", *words, *RUN, "--json")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    content = json.loads(done.stdout)
    assert (len(content["sources"]), len(content["targets"])) == (sources, targets)
    assert content["attack"] == attack and content["n"] == 12
    assert len(content["cells"]) == sources * targets


def test_every_form_shows_the_matrix_and_eval_finds_the_diagonal(here: Here) -> None:
    words = ("transfer", "tiny-vit", "tiny-vit-standard", FAST, *RUN)
    table = here(*words).stdout
    for expected in ("accuracy on the target", "n = 12", "drop from the clean", "success among", "crafted on"):
        assert expected in table
    assert "doubt" not in table
    content = json.loads(here(*words, "--json").stdout)
    cell = content["cells"][0]
    shown = f"{100 * cell['accuracy']['accuracy']:.1f}"
    for form, mark in (("md", f"| tiny-vit | {shown} % |"), ("latex", f"tiny-vit & {shown} \\% &")):
        assert mark in here(*words, "--format", form).stdout
    csv = here(*words, "--format", "csv").stdout
    assert csv.startswith("source,target,n,n_joint,resized,clean,accuracy,accuracy_low") and csv.count("\n") == 1 + 4
    alone = here("eval", "tiny-vit", FAST, *RUN[:-1])
    assert "from the store" in alone.stderr
    assert f"{cell['accuracy']['correct']}/12" in alone.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pgd"], "no source is named"),
        ([], "no source is named"),
        (["tiny-vit", "--to"], "--to names no target"),
        (["tiny-vit", "--to", "--threat", "linf:1/255"], "--to names no target"),
        (["tiny-vit", "--to", "tiny-vitt", "pgd"], "unknown model 'tiny-vitt': did you mean tiny-vit"),
        (["tiny-vit", "pgdd(steps=3)"], "unknown attack 'pgdd'"),
        (["tiny-vit", "pdg"], "unknown model or attack 'pdg': did you mean pgd"),
        (["tiny-vit", "pgd", "--attack", "mim"], "one attack is crafted at a time"),
        (["tiny-vit", "--threat", "spatial"], "not spatial ones"),
        (["tiny-vit", "--protocol", "transferatack"], "did you mean transferattack"),
        (["tiny-vit", "--protocol", "transferattack", "--threat", "linf:8/255"], "is under linf:16/255"),
        (["tiny-vit", "--shard", "0/2"], "No such option"),
        (["tiny-vit", "--out", "file/below", "--limit", "4"], "give another folder with --out"),
    ],
)
def test_wrong_words_get_one_line(tmp_path: Path, here: Here, words: list[str], message: str) -> None:
    (tmp_path / "file").write_text("")
    refused(here("transfer", *words), message)
    assert not (tmp_path / "runs").exists()


def test_kill_9_and_resume_gives_identical_records(tmp_path: Path, here: Here) -> None:
    words = ("transfer", "tiny-vit", "--to", "tiny-vit-standard", "tiny-vit", "pgd(steps=4, stop=never)")
    words = (*words, "--limit", "24", "--batch-size", "4", "--threads", "1", "--quiet", "--json", "--out")

    def records(root: str) -> dict[str, bytes]:
        return {path.parent.name: path.read_bytes() for path in (tmp_path / root).glob("*/samples.jsonl")}

    process = fork(*words, "torn", cwd=tmp_path)
    deadline = time.monotonic() + 120
    while sum(map(len, records("torn").values())) == 0:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    whole = here(*words, "whole")
    assert whole.returncode == 0, whole.stderr
    assert records("torn") != records("whole")
    again = here(*words, "torn")
    assert again.returncode == 0, again.stderr
    assert records("torn") == records("whole")
    cells = [json.loads(done.stdout.replace("torn/", "whole/"))["cells"] for done in (whole, again)]
    assert cells[0] == cells[1]
