"""Every parser refuses what it cannot read in one clean line, in time, without running anything; see benchmarks/fuzz.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.parsers import PARSERS

EXAMPLES = {"http answers": 20, "attacks": 60, "benchmarks": 25, "zoo": 25, "parquet": 30}
OTHERS = 40


@pytest.mark.parametrize("name", PARSERS)
def test_parsed_or_refused_in_one_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = PARSERS[name]
    monkeypatch.setenv("VITATTACK_HOME", str(tmp_path / "home"))

    @seed(0)
    @settings(
        max_examples=EXAMPLES.get(name, OTHERS),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(target.inputs())
    def check(value: object) -> None:
        target.run(value)

    check()


@pytest.mark.parametrize("name", ["attacks", "threats", "rows"])
def test_valid_inputs_are_parsed(name: str) -> None:
    """The strategies are not noise alone: some of what they draw is valid."""
    target, outcomes = PARSERS[name], set[str]()

    @seed(0)
    @settings(max_examples=40, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def draw(data: st.DataObject) -> None:
        outcomes.add(target.run(data.draw(target.inputs())))

    draw()
    assert "parsed" in outcomes
