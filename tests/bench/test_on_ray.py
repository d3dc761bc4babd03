"""Ray in place of this process: the same bytes, whatever dies under it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.test_run import CELLS, Steps, lines, run
from vitattack.bench.executors import Serial
from vitattack.bench.on_ray import OnRay

ray = pytest.importorskip("ray")


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # else Ray writes a token into the home of whoever runs the tests
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    return lines(run(tmp_path_factory.mktemp("serial"), Serial()))


def test_two_local_workers_stream_the_same_records(tmp_path: Path, serial: list[bytes]) -> None:
    steps = Steps()
    found = run(tmp_path, OnRay(jobs=2), progress=steps)
    assert lines(found) == serial and not steps.notes
    assert all(each.content["run"] == str(each.folder) for each in found)
    assert {name for name, done, total in steps.moves if done == total} == {cell.name for cell in CELLS}
    assert not ray.is_initialized()
