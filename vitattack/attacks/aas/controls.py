"""Company of an AAS run: scales from an earlier one, the controls it needs, and what they say about it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from vitattack.attacks import attack_text
from vitattack.attacks.aas.report import masking_verdict
from vitattack.core.errors import UsageError
from vitattack.records import stats
from vitattack.records.result import Evaluation, Result
from vitattack.records.sealed import load
from vitattack.text.syntax import AttackSource, AttackSyntax

# Besides restarts; the last one is the arbiter of underflow.
CONTROLS = ("random_scales", "scale_search", "fp64")


def read_scales(path: Path) -> tuple[tuple[float, ...], ...]:
    """Attention scales from a file: a list of lists of numbers, or the `learned.json` of an earlier run."""
    try:
        content = json.loads(path.read_text())
        if isinstance(content, dict) and "crc" in content:
            load(path)
    except (OSError, ValueError, RecursionError) as error:  # ValueError: no JSON, or damaged
        raise UsageError(f"cannot read scales from '{path}' ({error}): give JSON such as [[0.5, 0.3]]") from error
    if isinstance(content, dict):
        for key in ("learned", "found", "scales"):
            content = content.get(key) if isinstance(content, dict) else None
    rows = content if isinstance(content, list) and content and isinstance(content[0], list) else [content]
    try:
        return tuple(tuple(float(f"{float(value):.6g}") for value in row) for row in rows)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"'{path}' holds no scales per layer: write [[0.5, 0.3]], a list per set") from None


def with_bases(attacks: Sequence[AttackSource]) -> list[AttackSyntax]:
    """The attacks, and the base attack of every AAS among them, which its controls are measured by."""
    named = [attack_text.example_attack(each) for each in attacks]
    bases = [attack_text.inner_syntax(each.syntax) for each in named if each.attack.traits.attention]
    if not bases:
        raise UsageError("--controls belongs to a run of aas: add an attack such as aas+pgd")
    return _distinct([*(each.syntax for each in named), *(base for base in bases if base is not None)])


def with_controls(evaluation: Evaluation) -> list[AttackSyntax]:
    """Everything evaluated, and the controls of every AAS run: what else could the same compute have bought?"""
    attacks = [evaluation.syntax[result.job.attack] for result in evaluation.results]
    for result, inner in _aas_runs(evaluation):
        attacks += [_restarts(evaluation, result, inner), *_controls_of(inner)]
    return _distinct(attacks)


def _distinct(attacks: Sequence[AttackSyntax]) -> list[AttackSyntax]:
    return list({syntax.text: syntax for syntax in attacks}.values())


def _aas_runs(evaluation: Evaluation) -> Iterator[tuple[Result, AttackSyntax]]:
    """Every run of AAS with its base attack; controls of other runs are left out."""
    for result in evaluation.results:
        inner = attack_text.inner_syntax(evaluation.syntax[result.job.attack])
        if inner is None or result.section("referee") is None:
            continue
        if result.job.attack not in [control.text for control in _controls_of(inner)]:
            yield result, inner


def _controls_of(inner: AttackSyntax) -> list[AttackSyntax]:
    return [attack_text.wrapped_in(name, inner) for name in CONTROLS]


def _restarts(evaluation: Evaluation, result: Result, inner: AttackSyntax) -> AttackSyntax:
    """As many restarts of the base attack as the AAS run paid for, its search included.

    A restart is paid for by the survivors, and how many there will be is not known in advance. Computed with the
    survivors of the AAS run, the control gets at least its compute unless it breaks more than AAS does.
    """
    plain = next(r for r in evaluation.results if r.job.attack == inner.text)
    attacked = max(1, sum(r.clean == r.label for r in result.records))
    search = result.learned or {"forwards": 0, "backwards": 0}
    spent = sum(stats.mean_passes(result.records)) + (search["forwards"] + search["backwards"]) / attacked
    first = sum(stats.mean_passes(plain.records))
    standing = {r.index for r in result.records if r.status == "robust"}
    # two forwards, the clean one and the judge's, are paid once whatever the number of restarts
    again = sum(r.forwards + r.backwards - 2 for r in plain.records if r.index in standing) / attacked
    count = 1 + round((spent - first) / again) if again else 2
    return attack_text.wrapped_in("restarts", inner, min(max(2, count), 1000))


def masking_verdicts(evaluation: Evaluation) -> list[str]:
    """For each AAS run with its controls, whether masking is shown."""
    by_text = {result.job.attack: result for result in evaluation.results}
    lines = []
    for result, inner in _aas_runs(evaluation):
        if inner.text not in by_text:
            continue
        restarts = by_text.get(_restarts(evaluation, result, inner).text)
        double = by_text.get(_controls_of(inner)[-1].text)
        if restarts is not None and double is not None:
            lines.append(f"{result.job.attack}: {masking_verdict(result, restarts, by_text[inner.text], double)}")
    return lines
