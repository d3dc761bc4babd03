"""Paths named in the documentation exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
PATH = re.compile(
    r"(?<![\w./])(?:vitattack|cli|tests|benchmarks|docs|embedded|requirements)/[\w./-]*\w(?:/|(?=[\s`,.;:)\]]|$))"
)

pytestmark = pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="needs the checkout")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_on_a_page_exists(page: Path) -> None:
    named = {match.group().rstrip(".") for match in PATH.finditer(page.read_text())}
    assert not [path for path in sorted(named) if not (ROOT / path).exists()]


def test_the_map_names_every_room() -> None:
    text = (ROOT / "docs" / "design.md").read_text()
    rooms = [path.name for path in (ROOT / "vitattack").iterdir() if (path / "__init__.py").is_file()]
    assert not [room for room in rooms if f"`vitattack/{room}/`" not in text]
