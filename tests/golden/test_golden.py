"""The golden set: what was recorded before still comes out, to the byte where this machine computes as that one did."""

from __future__ import annotations

from pathlib import Path

import pytest

from .cases import CASES, FAST
from .comparing import EQUAL, compare
from .running import missing, run
from .storing import RECORDS, Record, here, place, read_environment


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FAST else pytest.mark.slow) for n in CASES])
def test_a_case_is_as_recorded(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    if package := missing(case):
        pytest.skip(f"{package} is not installed")
    monkeypatch.setenv("VITATTACK_HOME", str(tmp_path))
    known, now = read_environment(RECORDS), here()
    told = compare(case, Record.read(place(RECORDS, name)), run(case), same_environment=known == now)
    machines = "" if known == now else f"\nrecords are of {known}\nthis is {now}: discrete columns are compared"
    assert told.outcome == EQUAL, "\n".join(map(str, told.differences[:10])) + machines
    if known != now:
        pytest.skip(f"equal in what is discrete; bytes are not compared: records are of {known}, this is {now}")
