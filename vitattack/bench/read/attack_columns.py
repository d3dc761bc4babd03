"""Columns of a benchmark file: attacks to run, and attacks known by published numbers alone."""

from __future__ import annotations

from functools import partial

from vitattack.attacks.catalogue import check_attack_names
from vitattack.bench.schema import CLEAN, AttackColumn, Benchmark, covered
from vitattack.core.errors import WrongThreat
from vitattack.core.words import printable
from vitattack.text.yaml_lines import Item, checked
from vitattack.threats.base import parse_threat


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
        checked(written, lambda: check_attack_names(text))
    return AttackColumn(text, label or text, written.line, published)


def _refuse_clean(item: Item) -> None:
    item.refuse("clean accuracy is measured in any case: drop clean from the attacks")


def check_attack_options(bench: Benchmark) -> None:
    """Refuse options that an attack does not have, and threats it is not defined for unless `skip` leaves them out.

    This imports torch, so that a file is checked for everything else before. Whether values suit each other is checked
    when attacks are built, before a run.
    """
    from vitattack.attacks import attack_text

    for attack in bench.attacks:
        if attack.published:
            continue
        place = Item(None, attack.line, printable(bench.path))
        checked(place, partial(attack_text.check_attack_text, attack.text))
        for threat in bench.threats:
            if all(covered(bench.skip, model, attack, threat) for model in bench.models):
                continue
            try:
                attack_text.check_attack_text(attack.text, parse_threat(threat))
            except WrongThreat as error:
                reason = str(error).partition(": ")[0]
                place.refuse(f"{reason}: drop it, or add skip: [{{attacks: {attack.label!r}, threats: {threat!r}}}]")
