"""Around an AAS run: scales from an earlier one, the controls it needs, and what they say about it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from vitattack.attacks import attack_text
from vitattack.attacks.aas.report import masking_verdict
from vitattack.core.errors import UsageError
from vitattack.records import stats
from vitattack.records.result import Evaluation, Result


def read_scales(path: Path) -> tuple[tuple[float, ...], ...]:
    """Attention scales from a file: a list of lists of numbers, or the `learned.json` of an earlier run."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read scales from '{path}' ({error}): give JSON such as [[0.5, 0.3]]") from error
    if isinstance(content, dict):
        content = content.get("learned")
        content = content.get("found", {}).get("scales") if isinstance(content, dict) else None
    rows = content if isinstance(content, list) and content and isinstance(content[0], list) else [content]
    try:
        return tuple(tuple(float(f"{float(value):.6g}") for value in row) for row in rows)
    except (TypeError, ValueError):
        raise UsageError(f"'{path}' holds no scales per layer: write [[0.5, 0.3]], a list per set") from None


def with_bases(texts: Sequence[str]) -> list[str]:
    """The attacks, and the base attack of every AAS among them, which its controls are measured by."""
    texts = [attack_text.canonical(text) for text in texts]
    bases = [attack_text.held(text) for text in texts if attack_text.example(text).attack.traits.attention]
    if not bases:
        raise UsageError("--controls belongs to a run of aas: add an attack such as aas+pgd")
    return list(dict.fromkeys([*texts, *(base for base in bases if base is not None)]))


def control_texts(evaluation: Evaluation) -> tuple[str, ...]:
    """Everything evaluated, and the controls of every AAS run: what else could the same compute have bought?"""
    texts = [result.job.attack for result in evaluation.results]
    for result in evaluation.results:
        inner = attack_text.held(result.job.attack)
        if result.section("referee") is not None and inner is not None and result.job.attack not in _controls_of(inner):
            texts += [_restarts(evaluation, result, inner), *_controls_of(inner)]
    return tuple(dict.fromkeys(texts))


def _controls_of(inner: str) -> list[str]:
    return [attack_text.canonical(f"{name}({inner})") for name in ("random_scales", "scale_search", "fp64")]


def _restarts(evaluation: Evaluation, result: Result, inner: str) -> str:
    """So many restarts of the base attack as the AAS run paid for, its search included.

    A restart is paid for by the samples still standing, and how many those will be is not known before. Reckoned with
    the survivors of the AAS run, the control gets at least its compute wherever it breaks no more than AAS does.
    """
    plain = next(r for r in evaluation.results if r.job.attack == inner)
    attacked = max(1, sum(r.clean == r.label for r in result.records))
    search = result.learned or {"forwards": 0, "backwards": 0}
    spent = sum(stats.mean_passes(result.records)) + (search["forwards"] + search["backwards"]) / attacked
    first = sum(stats.mean_passes(plain.records))
    standing = {r.index for r in result.records if r.status == "robust"}
    # two forwards, the clean one and the judge's, are paid once whatever the number of restarts
    again = sum(r.forwards + r.backwards - 2 for r in plain.records if r.index in standing) / attacked
    count = 1 + round((spent - first) / again) if again else 2
    return attack_text.canonical(f"restarts({min(max(2, count), 1000)}, {inner})")


def verdicts(evaluation: Evaluation) -> list[str]:
    """For each AAS run with its controls: is masking shown?"""
    by_text = {result.job.attack: result for result in evaluation.results}
    found = []
    for text, result in by_text.items():
        inner = attack_text.held(text)
        if inner is None or inner not in by_text or result.section("referee") is None or text in _controls_of(inner):
            continue
        restarts = by_text.get(_restarts(evaluation, result, inner))
        double = by_text.get(_controls_of(inner)[-1])
        if restarts is not None and double is not None:
            found.append(f"{text}: {masking_verdict(result, restarts, by_text[inner], double)}")
    return found
