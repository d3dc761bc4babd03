"""Which stage of a staged attack broke how many samples, from its records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from vitattack.attacks.attack_text import bare, canonical
from vitattack.attacks.catalogue import ATTACKS, Entry
from vitattack.records.record import SampleRecord
from vitattack.text.syntax import Call

# AutoAttack's own bound: Square breaking more than this share of all samples speaks against the white-box stages.
SQUARE_HELPS = 0.002


def names(text: str) -> tuple[str, ...]:
    """The stages of an attack in order, by their texts; empty where it has none of its own."""
    node = bare(text)
    if not isinstance(node, Call):
        return ()
    if node.name == "worst":
        return tuple(canonical(part) for part in node.args)
    tell = ATTACKS[node.name].stages
    return tell(dict(node.options)) if tell else ()


def broken(text: str, records: Sequence[SampleRecord]) -> dict[str, int]:
    """How many samples fell to each stage; empty for an attack without stages."""
    found = names(text)
    counts = Counter(int(r.evidence.get("stage", -1)) for r in records if r.status == "fooled")
    total: Counter[str] = Counter()
    for number, name in enumerate(found):  # one that is named twice counts once
        total[name] += counts[number]
    return dict(total)


def square_helps(text: str, records: Sequence[SampleRecord]) -> list[str]:
    """AutoAttack's flag: a black-box stage that finds what gradients did not."""
    found = broken(text, records)
    gradients = [number for number, name in enumerate(found) if not getattr(_entry(name), "black_box", False)]
    late = sum(
        count
        for number, (name, count) in enumerate(found.items())
        if gradients and number > gradients[0] and _entry(name) is ATTACKS["square"]
    )
    if late > SQUARE_HELPS * len(records):
        return [
            f"square broke {late} of {len(records)} samples that the gradient stages before it left: gradients may be "
            "masked; try more queries, restarts, another loss or an attack made for this defence"
        ]
    return []


def _entry(stage: str) -> Entry | None:
    """What a stage is, by its text, if it is an attack with a name; the package writes apgd-ce for apgd_ce."""
    name = stage.partition("(")[0].replace("-", "_")
    return ATTACKS[name] if name in ATTACKS else None  # noqa: SIM401  # a registry has no get
