"""An evaluation parses its attack text once, and derives numbers and reports from its records once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.cli.conftest import Here
from vitattack.attacks.auto import report
from vitattack.evaluation.evaluate import evaluate
from vitattack.records import stats
from vitattack.text import syntax

Calls = Counter[str]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Counts of parsed texts, computed worst cases and reports of `auto`."""
    counts: Calls = Counter()

    def count(module: object, name: str) -> None:
        real = getattr(module, name)

        def counted(*args: object, **named: object) -> object:
            counts[name] += 1
            return real(*args, **named)

        monkeypatch.setattr(module, name, counted)

    count(syntax, "parse_syntax")
    count(stats, "worst_case")
    count(report, "auto_report")
    return counts


@pytest.mark.parametrize("stored", [False, True])
def test_one_evaluation_derives_everything_once(calls: Calls, tmp_path: Path, stored: bool) -> None:
    evaluation = evaluate("tiny-vit", "auto(passes=150)", limit=2, threads=1, out=tmp_path if stored else None)
    evaluation.json()
    assert evaluation.worst_case == evaluation.results[0].robust
    assert calls == {"parse_syntax": 1, "worst_case": 1, "auto_report": 1}


def test_the_command_parses_its_attack_once(here: Here, calls: Calls) -> None:
    assert here("eval", "tiny-vit", "auto(passes=150)", "--limit", "2", "--threads", "1", "--quiet").returncode == 0
    assert calls == {"parse_syntax": 1, "worst_case": 1, "auto_report": 1}
