"""Columns of a benchmark file: attacks to run, and attacks known by published numbers alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vitattack.bench.plan.outline import outline
from vitattack.bench.schema import CLEAN, AttackColumn, ModelRow, Selector, covered
from vitattack.core.errors import WrongThreat
from vitattack.text.yaml_lines import Item, checked
from vitattack.threats.base import Threat


def attack_column(item: Item) -> AttackColumn:
    """The column of one entry of `attacks`."""
    is_mapping = isinstance(item.value, dict)
    keys = item.keys("an attack", ("attack", "label", "published")) if is_mapping else {}
    published = keys["published"].truth("published") if "published" in keys else False
    label = keys["label"].text("label") if "label" in keys else None
    if keys and "attack" not in keys:
        if not (published and label):
            item.refuse("an attack needs its text: add attack: pgd, or label: WORDS with published: true")
        if label == CLEAN:
            _refuse_clean(item)
        return AttackColumn(label, label, item.line, published=True)
    written = keys.get("attack", item)
    text = written.text("an attack")
    if CLEAN in (text, label):
        _refuse_clean(written)
    if text.count("(") != text.count(")"):
        written.refuse(f"the brackets of '{text}' do not close: put an attack with commas in quotes")
    if not published:
        checked(written, lambda: outline(text))
    return AttackColumn(text, label or text, written.line, published)


def _refuse_clean(item: Item) -> None:
    item.refuse("clean accuracy is measured in any case: drop clean from the attacks")


def check_defined(
    attack: AttackColumn,
    item: Item,
    threats: Mapping[str, Threat],
    models: Sequence[ModelRow],
    skip: Sequence[Selector],
) -> None:
    """Refuse an attack that is not defined for a threat, unless `skip` leaves out all of its cells there."""
    for name, threat in threats.items():
        if attack.published or all(covered(skip, model, attack, name) for model in models):
            continue
        try:
            outline(attack.text, threat)
        except WrongThreat as error:
            reason = str(error).partition(": ")[0]
            item.refuse(f"{reason}: drop it, or add skip: [{{attacks: {attack.label!r}, threats: {name!r}}}]")
