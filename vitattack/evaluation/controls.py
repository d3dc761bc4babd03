"""Around an AAS run: scales from an earlier one, the controls it needs, and what they say about it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from vitattack import spec
from vitattack.attacks.catalogue import ATTACKS
from vitattack.errors import UsageError
from vitattack.evaluation import stats
from vitattack.evaluation.referee import masking_verdict, referee
from vitattack.evaluation.result import Evaluation
from vitattack.syntax import Call, parse


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
    except TypeError:
        raise UsageError(f"'{path}' holds no scales per layer: write [[0.5, 0.3]], a list per set") from None


def require_aas(texts: Sequence[str]) -> None:
    """Before anything runs: controls need something to control."""
    if not any(
        call.name in ATTACKS and ATTACKS[call.name].needs_attention
        for call in map(parse, texts)
        if isinstance(call, Call)
    ):
        raise UsageError("--controls belongs to a run of aas: add an attack such as aas+pgd")


def control_texts(evaluation: Evaluation) -> tuple[str, ...]:
    """The control runs of every AAS run of an evaluation, at its compute: what else could have bought the same."""
    texts: list[str] = []
    for result in evaluation.results:
        inner = spec.held(result.job.attack)
        if referee(result) is None or inner is None:
            continue
        search = result.learned or {"forwards": 0, "backwards": 0}
        attacked = max(1, sum(r.clean == r.label for r in result.records))
        spent = sum(stats.mean_passes(result.records)) + (search["forwards"] + search["backwards"]) / attacked
        plain = next((r for r in evaluation.results if r.job.attack == inner), None)
        price = sum(stats.mean_passes(plain.records)) if plain else spent / 4
        again = max(2, round(spent / price))
        texts += [inner, result.job.attack, f"restarts({again}, {inner})"]
        texts += [f"random_scales({inner})", f"scale_search({inner})", f"fp64({inner})"]
    return tuple(dict.fromkeys(spec.canonical(text) for text in texts))


def verdicts(evaluation: Evaluation) -> list[str]:
    """For each AAS run with its controls: is masking shown?"""
    by_text = {result.job.attack: result for result in evaluation.results}
    found = []
    for text, result in by_text.items():
        inner = spec.held(text)
        if inner is None or referee(result) is None or text.startswith(("random_scales(", "scale_search(")):
            continue
        again = next((r for t, r in by_text.items() if t.startswith("restarts(") and spec.held(t) == inner), None)
        double = by_text.get(spec.canonical(f"fp64({inner})"))
        if inner in by_text and again is not None and double is not None:
            found.append(f"{text}: {masking_verdict(result, again, by_text[inner], double)}")
    return found
