"""The published numbers of a benchmark file: each has a value, a source and a cell that the table shows."""

from __future__ import annotations

from collections.abc import Iterable

from vitattack.bench.read.selectors import Labels, fits
from vitattack.bench.schema import CLEAN, Override, Reference
from vitattack.text.yaml_lines import Item


def references(items: Iterable[Item], labels: Labels, source: str, skip: tuple[Override, ...]) -> tuple[Reference, ...]:
    """The numbers of a list; `source` is that of the file."""
    found: dict[tuple[str, str, str], Reference] = {}
    for item in items:
        one = _reference(item, labels, source)
        cell = (one.model, one.attack, one.threat)
        where = "/".join(filter(None, cell))
        if cell in found:
            item.refuse(f"the reference of {where} stands twice, first in line {found[cell].line}: keep one")
        if not _shown(one, labels, skip):
            item.refuse(f"skip leaves out the cell of this reference, {where}: drop one of the two")
        found[cell] = one
    return tuple(found.values())


def _reference(item: Item, labels: Labels, source: str) -> Reference:
    said = item.keys("a reference", ("model", "attack", "threat", "value", "n", "source"))
    for key in ("model", "attack", "value"):
        if key not in said:
            item.refuse(f"a reference has no {key}: write {{model: ID, attack: pgd, value: 35.2, n: 10000}}")
    model = labels.model(said["model"])
    attack = labels.attack(said["attack"])
    threat = labels.threat(said.get("threat"), item, attack)
    n = said["n"].whole("n", 1) if "n" in said and said["n"].value is not None else None
    own = said["source"].text("source") if "source" in said else source
    if not own:
        item.refuse("a published number needs its source: add source: here, or once for the whole file")
    return Reference(model, attack, threat, said["value"].number("value", 0, 100), n, own, item.line)


def _shown(number: Reference, labels: Labels, skip: tuple[Override, ...]) -> bool:
    """Whether a cell is left; clean accuracy stands beside any cell of its model."""
    model = next(one for one in labels.models if one.label == number.model)
    return any(
        not any(fits(pattern, model, attack, threat) for pattern in skip)
        for attack in labels.attacks
        for threat in labels.threats
        if number.attack == CLEAN or (attack.label, threat) == (number.attack, number.threat)
    )
