"""Text to objects and back; everything else refused with one line."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import warnings

import pytest

from vitattack.attacks import attack_text
from vitattack.attacks.catalogue import ATTACKS
from vitattack.attacks.compose import Stages
from vitattack.attacks.gradient.loop import Gradient
from vitattack.attacks.losses.plain import Margin
from vitattack.attacks.losses.targeted import TargetedDLR
from vitattack.core.errors import UsageError, WrongThreat
from vitattack.core.registry import Registry
from vitattack.text.syntax import AttackSyntax, arguments, first_argument, parse_syntax
from vitattack.threats.base import parse_threat
from vitattack.threats.lp import LpBall

BALL = LpBall("linf", 8 / 255)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("pgd", "pgd"),
        (" pgd( ) ", "pgd"),
        ("pgd(steps=20)", "pgd"),
        ("pgd(steps=2e1)", "pgd"),
        ("pgd(loss=ce)", "pgd"),
        ("pgd(loss=margin, steps=100)", "pgd(steps=100, loss=margin)"),
        ("pgd(loss=margin(kappa=inf))", "pgd(loss=margin)"),
        ("pgd(loss=margin(50))", "pgd(loss=margin(kappa=50))"),
        ("pgd(step=1/8, loss=dlr_targeted(-1))", "pgd(step=0.125, loss=dlr_targeted(rank=-1))"),
        ("pgd(step=0.25)", "pgd(step=0.25)"),  # the default in linf only
        ("pgd(preset='bhojanapalli2021')", "pgd(preset=bhojanapalli2021)"),
        (
            "pgd(rule=sign(schedule=milestones(at=(0.5,)), size=2))",
            "pgd(rule=sign(size=2, schedule=milestones(at=(0.5,))))",
        ),
        ("gama(space=logit, anchor='start')", "gama(space=logit)"),
        ("worst(pgd, gama)", "worst(pgd, gama)"),
        ("restarts(inner=pgd, n=3)", "restarts(3, pgd)"),
    ],
)
def test_canonical_text(text: str, canonical: str) -> None:
    assert attack_text.canonical(text) == canonical
    assert attack_text.canonical(canonical) == canonical
    for ball in (BALL, LpBall("l2", 0.5)):
        assert attack_text.build(text, ball) == attack_text.build(canonical, ball)


def test_objects_are_what_the_text_says() -> None:
    attack = attack_text.build("worst(pgd(steps=7, loss=margin), restarts(2, pgd(loss=dlr_targeted(3))))", BALL)
    assert isinstance(attack, Stages)
    first, second = attack.attacks
    assert isinstance(first, Gradient) and first.steps == 7 and first.loss == Margin() and first.ball is BALL
    assert isinstance(second, Stages) and second.fresh and len(second.attacks) == 2
    inner = second.attacks[0]
    assert isinstance(inner, Gradient) and inner.loss == TargetedDLR(rank=3)


def test_plus_is_sugar_for_holding(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(inner: attack_text.Attack, *, k: int = 2) -> Stages:
        """Runs it k times."""
        return Stages((inner,) * k, fresh=True)

    trial: Registry = Registry("attack")
    for name in ATTACKS:
        trial.add(name, ATTACKS[name])
    entry = type(ATTACKS["pgd"])
    trial.add("twice", entry(twice, "none", "twice(pgd)"))
    monkeypatch.setitem(attack_text.KINDS, attack_text.Attack, trial)
    assert attack_text.canonical("twice+pgd") == "twice(pgd)"
    assert attack_text.canonical("twice(k=3)+pgd(steps=5)") == "twice(pgd(steps=5), k=3)"
    assert attack_text.canonical("twice+twice+gama") == "twice(twice(gama))"
    assert attack_text.canonical("restarts(3)+twice+gama") == "restarts(3, twice(gama))"
    assert attack_text.canonical("worst(pgd, twice+gama)") == "worst(pgd, twice(gama))"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pgdd", "unknown attack 'pgdd': did you mean pgd"),
        ("pgd(stepz=3)", "unknown option of pgd 'stepz': did you mean step"),
        ("pgd(loss=marginn)", "unknown loss 'marginn': did you mean margin"),
        ("pgd(steps='a')", r"pgd\(steps=...\) takes a whole number, not 'a'"),
        ("pgd(steps=1.5)", "takes a whole number"),
        ("pgd(steps=True)", "takes a whole number, not True"),
        ("pgd(steps=0)", "0 steps cannot move an image"),
        ("pgd(step=-1)", "goes nowhere"),
        ("pgd(step=0.1, rule=sign)", "step or rule, not both"),
        ("pgd(eps=0.1)", "the budget is the threat's: use --threat"),
        ("pgd(20)", "pgd takes 0 plain arguments"),
        ("pgd(preset=bhojanapali)", "did you mean bhojanapalli2021"),
        ("pgd(preset=s001)", r"pgd\(preset=...\) 's001' was renamed: write light2023"),
        ("pgd(preset='s002')", "was renamed: write aas2024"),
        ("pgd(preset=s003)", "was renamed: write bhojanapalli2021"),
        ("gama(space=logitt)", "did you mean logit"),
        ("pgd+gama", "pgd takes 0 plain arguments"),
        ("restarts(pgd)", "restarts needs n, as in restarts"),
        ("restarts(0, pgd)", "0 restarts are too few"),
        ("aas(aas(pgd))", "do not hold each other"),
        ("aas(worst(pgd, fp64+gama))", "do not hold each other"),
        ("fp64+scale(0.5)+pgd", "do not hold each other"),
        ("worst()", "holds no attack"),
        ("worst(1)", "1 stands where an attack belongs"),
        ("pgd(steps=3, steps=4)", "steps is given twice"),
        ("3 + 4", "7 stands where an attack belongs"),
        ("", "is no attack"),
        ("pgd(", "is no attack"),
        ("pgd(step=1/0)", "divides by zero"),
        ("pgd(step=2**9)", "has no place in an attack"),
        ("pgd(**{})", "has no place in an attack"),
        ("pgd(*[1])", "has no place in an attack"),
        ("pgd.steps", "has no place in an attack"),
        ("(lambda: pgd)()", "has no place in an attack"),
        ("__import__('os').system('true')", "has no place in an attack"),
        ("open('x')", "unknown attack 'open'"),
        ("pgd if True else gama", "has no place in an attack"),
        ("(" * 300 + "pgd" + ")" * 300, "is no attack"),
        ("restarts(1," * 2000 + "pgd" + ")" * 2000, "characters: 4000 are the most"),
        ("-" * 3000 + "1", "is no attack"),
        ("pgd(steps=" + "9" * 3900 + ")", "is out of any range"),
        ("pgd(steps=" + "9" * 3990 + ")", "4000 are the most"),
    ],
)
def test_everything_else_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        attack_text.canonical(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_names_are_not_overwritten_silently() -> None:
    table: Registry[int] = Registry("number")
    table.add("one", 1)
    with pytest.raises(ValueError, match="registered already"):
        table.add("one", 2)


def test_a_name_of_a_plugin_is_found_without_a_listing_before(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name, module, attr = "dumped", "json", "dumps"

    monkeypatch.setattr("vitattack.core.registry.entry_points", lambda group: [Point()])
    table: Registry[object] = Registry("thing", entry_point_group="some.things")
    assert "dumped" in table and "loaded" not in table
    assert table["dumped"] is json.dumps


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
def test_mistakes_are_told_before_anything_is_built(text: str, said: str) -> None:
    with pytest.raises(UsageError) as checked:
        attack_text.check_attack_text(text)
    with pytest.raises(UsageError) as built:
        attack_text.canonical(text)
    assert said in str(checked.value)
    assert str(checked.value) == str(built.value)


@pytest.mark.parametrize("name", [name for name in ATTACKS if name != "torchattacks"])
def test_a_check_refuses_the_threats_that_an_attack_is_not_defined_for(name: str) -> None:
    quick = ATTACKS[name].quick
    attack_text.check_attack_text(quick)
    for text in ("linf:8/255", "l2:0.5", "spatial"):
        threat = parse_threat(text)
        held = [part for part in ATTACKS if re.search(rf"\b{part}\b(?!=)", quick.partition("(")[2])]
        if all(threat.kind in ATTACKS[part].kinds for part in (name, *held)):
            attack_text.check_attack_text(quick, threat)
        else:
            with pytest.raises(WrongThreat, match="is not defined for"):
                attack_text.check_attack_text(quick, threat)


def test_names_are_checked_without_torch() -> None:
    code = (
        "import sys\n"
        "from vitattack.attacks.catalogue import check_attack_names\n"
        "from vitattack.core.errors import UsageError\n"
        "check_attack_names('worst(pgd(loss=anything), aas+gama)')\n"
        "for text in ('pdg', 'worst(pgd, pdg)', 'aas+pdg', 'pgd('):\n"
        "    try:\n"
        "        check_attack_names(text)\n"
        "    except UsageError as error:\n"
        "        assert 'did you mean pgd' in str(error) or 'is no attack' in str(error), error\n"
        "    else:\n"
        "        sys.exit(text)\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "text", ["pgd(1if 1else 2)", "torchattacks('\\d')", "pgd(steps=1or 2)", "'\\d'", "1(2)", "pgd(1)(2)"]
)
def test_a_text_makes_the_parser_warn_of_nothing(text: str, recwarn: pytest.WarningsRecorder) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        for read in (parse_syntax, arguments, first_argument):
            with contextlib.suppress(UsageError, SyntaxError):
                read(text)
    assert [str(warning.message) for warning in recwarn] == []


def test_scales_are_put_into_attacks_that_search_some_and_into_no_others() -> None:
    given = attack_text.with_scales(AttackSyntax.of("worst(aas(pgd), pna(pgd))"), ((0.5,),))
    assert attack_text.canonical(given) == "worst(given(pgd, scales=((0.5,),)), pna(pgd))"
