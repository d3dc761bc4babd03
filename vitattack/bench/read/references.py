"""Published numbers of a benchmark file: each has a value, a source and a cell that the table shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vitattack.bench.read.selectors import Labels
from vitattack.bench.schema import CLEAN, Reference, Selector, covered
from vitattack.text.yaml_lines import Item


def references(items: Iterable[Item], labels: Labels, source: str, skip: Sequence[Selector]) -> tuple[Reference, ...]:
    """The entries of `reference`; `source` stands for those that name none of their own."""
    by_cell: dict[tuple[str, str, str], Reference] = {}
    for item in items:
        reference = _reference(item, labels, source)
        cell = (reference.model, reference.attack, reference.threat)
        name = "/".join(filter(None, cell))
        if cell in by_cell:
            item.refuse(f"the reference of {name} stands twice, first in line {by_cell[cell].line}: keep one")
        if not _has_cell(reference, labels, skip):
            item.refuse(f"skip leaves out the cell of this reference, {name}: drop one of the two")
        by_cell[cell] = reference
    return tuple(by_cell.values())


def _reference(item: Item, labels: Labels, source: str) -> Reference:
    keys = item.keys("a reference", ("model", "attack", "threat", "value", "n", "source"))
    for key in ("model", "attack", "value"):
        if key not in keys:
            item.refuse(f"a reference has no {key}: write {{model: ID, attack: pgd, value: 35.2, n: 10000}}")
    model = labels.model(keys["model"])
    attack = labels.attack(keys["attack"])
    threat = labels.threat(keys.get("threat"), item, attack)
    n = keys["n"].whole("n", 1) if "n" in keys and keys["n"].value is not None else None
    own_source = keys["source"].text("source") if "source" in keys else source
    if not own_source:
        item.refuse("a published number needs its source: add source: here, or once for the whole file")
    return Reference(model, attack, threat, keys["value"].number("value", 0, 100), n, own_source, item.line)


def _has_cell(reference: Reference, labels: Labels, skip: Sequence[Selector]) -> bool:
    """Whether `skip` leaves the cell; clean accuracy needs any cell of its model."""
    model = next(row for row in labels.models if row.label == reference.model)
    return any(
        not covered(skip, model, attack, threat)
        for attack in labels.attacks
        for threat in labels.threats
        if reference.attack == CLEAN or (attack.label, threat) == (reference.attack, reference.threat)
    )
