"""Names to objects: suggestions, former names, plug-ins, and entries for the length of a test."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from vitattack.core.errors import UsageError
from vitattack.core.registry import Registry, did_you_mean


@dataclass(frozen=True)
class Point:
    name: str
    module: str
    attr: str = "sqrt"


def numbers() -> Registry[object]:
    registry: Registry[object] = Registry("function", renamed={"log2e": "log"})
    registry.add("sqrt", "math:sqrt")
    registry.add("log", "math:log")
    return registry


def test_lazy_entries_are_imported_on_use_and_kept() -> None:
    import math

    registry = numbers()
    assert registry["sqrt"] is math.sqrt and registry["sqrt"] is math.sqrt
    assert list(registry) == ["log", "sqrt"] and registry.in_order == ("sqrt", "log")


def test_unknown_and_former_names_are_answered_with_one_line() -> None:
    registry = numbers()
    with pytest.raises(UsageError, match=r"^unknown function 'sqr': did you mean sqrt\?$"):
        registry["sqr"]
    with pytest.raises(UsageError, match=r"^function 'log2e' was renamed: write log$"):
        registry["log2e"]
    assert "log2e" not in registry and "log2e" not in list(registry)
    assert did_you_mean("preset", "old", ("new",), {"old": "new"}) == "preset 'old' was renamed: write new"
    assert did_you_mean("preset", "zzz", ("new",)) == "unknown preset 'zzz': known: new"


def test_no_name_is_taken_twice() -> None:
    registry = numbers()
    for name in ("sqrt", "log2e"):
        with pytest.raises(ValueError, match="is registered already"):
            registry.add(name, "math:sin")


def test_an_entry_for_the_length_of_a_block() -> None:
    registry = numbers()
    with registry.temporarily("sqrt", "math:cos"), registry.temporarily("sin", "math:sin"):
        import math

        assert registry["sqrt"] is math.cos and registry["sin"] is math.sin
    assert "sin" not in registry and registry["sqrt"] is math.sqrt


def test_plug_ins_add_names_and_cannot_take_one(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [Point("mine", "math"), Point("sqrt", "cmath"), Point("broken", "no_such_module_here")]
    monkeypatch.setattr("vitattack.core.registry.entry_points", lambda group: points)
    registry: Registry[object] = Registry("function", entry_point_group="vitattack.functions")
    registry.add("sqrt", "math:sqrt")
    with pytest.warns(UserWarning, match="'sqrt' of cmath:sqrt is ignored: the name is taken"):
        assert "mine" in registry
    import math

    assert registry["sqrt"] is math.sqrt and registry.in_order == ("sqrt", "broken", "mine")
    with pytest.raises(UsageError, match="'broken' cannot be loaded from no_such_module_here:sqrt .*install"):
        registry["broken"]


def test_lazy_entries_of_a_package_are_added_at_once_and_never_over_others() -> None:
    import json.decoder

    registry: Registry[object] = Registry("reader")
    registry.add_lazily("json", {"reader": "decoder:JSONDecoder", "error": "decoder:JSONDecodeError"})
    assert registry["reader"] is json.decoder.JSONDecoder and registry.in_order == ("reader", "error")
    with pytest.raises(ValueError, match="registered already"):
        registry.add_lazily("json", {"error": "encoder:JSONEncoder"})
