"""`vitattack check` on the command line: its words, its exit code, and what it refuses."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Here
from vitattack.checks import check


def test_the_verdict_is_the_last_line_and_the_exit_code(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "CHECKS", {name: check.CHECKS[name] for name in ("determinism", "gradient fidelity")})
    monkeypatch.setattr(check, "IMAGES", 4)
    words = ("check", "tiny-cnn-standard", "--limit", "6", "--threads", "1", "--quiet")
    done = here(*words, "--explain")
    assert done.returncode == 0, done.stderr
    assert "holds: 0.0 % found" in done.stdout and "What each check asks" in done.stdout
    done = here(*words, "--claim", "90", "--json")
    content = json.loads(done.stdout)
    assert done.returncode == 3 and content["verdict"] == "does not hold" and content["claim"] == 0.9
    assert [item["name"] for item in content["checks"]] == ["determinism", "gradient fidelity", "certificate"]
    assert content["certificate"]["found"][-1]["attack"] == "auto"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--claim", "0.56"), "write 56"),
        (("--threat", "linf:1/255,2/255"), "one --threat"),
        (("--threat", "spatial"), "write linf:8/255"),
        (("--claim", "300"), "--claim 56.1"),
        (("--claim", "5/9000"), "--limit 9000"),
    ],
)
def test_wrong_words_end_in_one_line(here: Here, words: tuple[str, ...], message: str) -> None:
    done = here("check", "tiny-vit", *words)
    assert done.returncode == 2 and message in done.stderr and len(done.stderr.splitlines()) == 1
