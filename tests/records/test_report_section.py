"""Sections as they are stored: plain JSON of the same keys, whatever tables have learned to show since."""

from __future__ import annotations

import json

from vitattack.core.table import Table
from vitattack.records.report_section import Section


def test_a_section_is_stored_as_plain_json_of_the_keys_it_always_had() -> None:
    table = Table("t", ("a", "b"), [("x", "1")], ("n",), groups=(("g", "b"),), best=frozenset({(0, 1)}))
    section = Section("stages", {"pgd": 3}, notes=("note",), tables=(table,))
    stored = json.loads(json.dumps(section.stored()))
    assert list(stored) == ["name", "rows", "notes", "tables", "doubts"]
    assert list(stored["tables"][0]) == ["title", "columns", "rows", "notes", "left", "whole"]
    [restored] = Section.restored(stored, {"stages": {"pgd": 3}}).tables
    assert (restored.title, list(restored.columns), restored.best) == ("t", ["a", "b"], frozenset())
