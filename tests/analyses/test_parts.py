"""Parts of an analysis on disk: stopped, damaged, of another question."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitattack.analyses.parts import kept_parts


def test_a_stopped_measurement_goes_on_where_it_was(tmp_path: Path) -> None:
    made: list[int] = []

    def make(number: int) -> dict[str, float]:
        if number == 3 and len(made) == 3:
            raise KeyboardInterrupt
        made.append(number)
        return {"value": number / 3}

    path = tmp_path / "parts.jsonl"
    with pytest.raises(KeyboardInterrupt):
        kept_parts(path, 5, make, "test")
    made.append(-1)
    parts = kept_parts(path, 5, make, "test")
    assert made == [0, 1, 2, -1, 3, 4]
    assert parts == [{"value": n / 3} for n in range(5)]
    whole = path.read_bytes()
    assert kept_parts(path, 5, lambda n: pytest.fail("made again"), "test") == parts
    assert path.read_bytes() == whole


@pytest.mark.parametrize("damage", ["cut", "changed", "swapped", "foreign"])
def test_what_is_damaged_is_made_again(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "parts.jsonl"
    kept_parts(path, 4, lambda n: {"value": n}, "test")
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(
        {
            "cut": whole[:-9],
            "changed": whole.replace(b'"value":2', b'"value":7'),
            "swapped": lines[0] + lines[2] + lines[1] + lines[3],
            "foreign": lines[0] + b'{"part":1}\n' + b"\xff\n",
        }[damage]
    )
    made: list[int] = []
    parts = kept_parts(path, 4, lambda n: made.append(n) or {"value": n}, "test")  # type: ignore[func-returns-value]
    assert parts == [{"value": n} for n in range(4)]
    assert path.read_bytes() == whole
    assert made == {"cut": [3], "changed": [2, 3], "swapped": [1, 2, 3], "foreign": [1, 2, 3]}[damage]


def test_fresh_forgets_what_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "parts.jsonl"
    kept_parts(path, 3, lambda n: {"value": n}, "test")
    assert kept_parts(path, 2, lambda n: {"value": -n}, "test", fresh=True) == [{"value": 0}, {"value": -1}]


def test_numbers_that_are_none_are_stored_as_nothing(tmp_path: Path) -> None:
    path = tmp_path / "parts.jsonl"
    first = kept_parts(path, 1, lambda n: {"value": [float("nan"), float("inf"), 1.5]}, "test")
    assert first == kept_parts(path, 1, lambda n: pytest.fail("made again"), "test") == [{"value": [None, None, 1.5]}]
