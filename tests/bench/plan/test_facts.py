"""What was recorded for those who must not import torch is what torch says."""

from __future__ import annotations

import json

import pytest

from vitattack.attacks.catalogue import ATTACKS
from vitattack.bench.plan import facts, record
from vitattack.bench.plan.outline import outline
from vitattack.core.errors import UsageError, WrongThreat
from vitattack.data.catalogue import DATA_SETS
from vitattack.threats.base import parse_threat

CONTENT = json.loads(facts.FILE.read_text())
AGAIN = "run python benchmarks/record_facts.py"


def test_attacks_and_their_options_are_as_recorded() -> None:
    assert CONTENT["attacks"] == record.attacks(), AGAIN
    assert CONTENT["parts"] == record.parts(), AGAIN
    assert set(facts.attacks()) == {
        name for name in ATTACKS if ATTACKS[name].factory.__module__.startswith("vitattack.")
    }


def test_data_sets_are_as_recorded() -> None:
    assert CONTENT["data"] == record.data_sets(), AGAIN
    assert all(facts.data_sets()[name].rows == DATA_SETS[name].rows for name in DATA_SETS)


@pytest.mark.parametrize("name", [name for name in facts.attacks() if name != "torchattacks"])
def test_an_outline_names_what_the_attack_is_built_of(name: str) -> None:
    read = outline(ATTACKS[name].quick)
    assert read.name == name and read.known
    for threat in ("linf:8/255", "l2:0.5", "spatial"):
        defined = parse_threat(threat).kind in ATTACKS[name].kinds
        held = [v for v in read.values.values() if getattr(v, "name", "") in facts.attacks()]
        held += [v for v in read.values.get("attacks", ()) if v.name in facts.attacks()]
        if all(parse_threat(threat).kind in facts.attacks()[inner.name].threats for inner in held) and defined:
            outline(ATTACKS[name].quick, parse_threat(threat))
        else:
            with pytest.raises(WrongThreat, match="is not defined for"):
                outline(ATTACKS[name].quick, parse_threat(threat))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pdg", "did you mean pgd"),
        ("pgd(loss=cee)", "unknown loss 'cee': did you mean ce"),
        ("pgd(start=unifrom)", "did you mean uniform"),
        ("pgd(rule=sgin(size=1))", "unknown step rule 'sgin'"),
        ("pgd(preset=bhojanapali2021)", "did you mean bhojanapalli2021"),
        ("pgd(20)", "pgd takes 0 plain arguments"),
        ("restarts(pgd)", "restarts needs n"),
        ("worst(pgd, perceptual(pgd))", "write it outermost"),
        ("worst(3)", "3 stands where an attack belongs"),
        ("fab(steps=1e12)", "out of any range"),
        ("pgd; import os", "is no attack"),
        ("__import__('os')", "unknown attack"),
    ],
)
def test_mistakes_are_told_as_the_builder_tells_them(text: str, said: str) -> None:
    from vitattack.attacks import attack_text

    with pytest.raises(UsageError) as light:
        outline(text)
    with pytest.raises(UsageError) as heavy:
        attack_text.canonical(text)
    assert said in str(light.value)
    assert str(light.value) == str(heavy.value)
