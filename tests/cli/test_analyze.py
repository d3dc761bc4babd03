"""`vitattack analyze` from words to screens: run, found again, drawn, refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Here

WORDS = ("analyze", "corruptions", "tiny-vit", "kinds=contrast", "severities=5", "--limit", "3", "--threads", "1")


def test_an_analysis_is_run_once_and_found_again(here: Here, tmp_path: Path) -> None:
    first = here(*WORDS, "--json", "--plot", "a.png")
    content = json.loads(first.stdout)
    assert first.returncode == 0 and content["analysis"] == "corruptions" and content["n"] == 3
    assert [row["corruption"] for row in content["rows"]][-1] == "contrast"
    again = here(*WORDS, "--json", "--plot", "b.png")
    assert json.loads(again.stdout) == content and "from the store" in again.stderr
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    fresh = here(*WORDS, "--fresh", "--format", "csv")
    assert fresh.returncode == 0 and "from the store" not in fresh.stderr


def test_tables_fit_the_terminal(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    models = ("tiny-vit", "tiny-vit-standard", "tiny-cnn-standard")
    found = here("analyze", "corruptions", *models, *WORDS[3:])
    assert found.returncode == 0 and "(1 of 2)" in found.stdout
    tables = found.stdout.partition("\ntiny-vit: ")[0]  # what follows are sentences
    assert max(map(len, tables.splitlines())) <= 60


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("corruptions", "tiny-vit", "kinds=frost"), "frost cannot be made here"),
        (("corruptions", "tiny-vit", "--threat", "linf:8/255"), "attacks nothing: drop --threat"),
        (("imagenet-a", "tiny-vit", "--data", "cifar10"), "is asked of imagenet-a alone"),
        (("semantic", "tiny-vit", "--limit", "1", "--threads", "1"), "no other model to judge"),
        (("scatter", "no-such-model"), "nothing is stored or published of 'no-such-model'"),
        (("corruption",), "did you mean corruptions"),
        (("corruptions", "tiny-vit", "steps=3"), "unknown parameter of corruptions"),
    ],
)
def test_wrong_words_are_refused_in_one_line(here: Here, words: tuple[str, ...], why: str) -> None:
    found = here("analyze", *words)
    assert found.returncode == 2 and why in found.stderr and found.stderr.count("\n") == 1, found.stderr
