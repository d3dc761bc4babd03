"""A benchmark file to a `Bench`: every name, budget and number is checked, and a mistake is told with FILE:LINE."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from vitattack.bench.plan.outline import outline
from vitattack.bench.read.references import references
from vitattack.bench.read.rows import Rows, rows
from vitattack.bench.read.selectors import Labels, fits
from vitattack.bench.read.settings import OPTIONS, SETTINGS, check_file, public, some, values
from vitattack.bench.schema import AXES, CLEAN, Attack, Bench, Model, Override, Settings
from vitattack.core.errors import UsageError, WrongThreat
from vitattack.core.words import printable
from vitattack.models.weights.sources import SUFFIXES
from vitattack.models.zoo.entries import entries
from vitattack.models.zoo.renamed import refuse_former_id
from vitattack.text.yaml_lines import Item, checked, load, unknown
from vitattack.threats.base import Threat, parse_threats

KEYS = (
    *("schema", "title", "source", "notes", "data", "limit", "threats", "seeds", "models", "attacks", "defaults"),
    *("overrides", "skip", "reference", "rows", "columns"),
)
WILD = "*?["
HUBS = ("timm:", "hf-hub:")
NOTHING: list[Item] = []


def bench_of(path: Path) -> Bench:
    """The benchmark in a file."""
    top = load(path)
    found = top.keys("a benchmark", KEYS)
    if "schema" not in found or found["schema"].value != 1:
        found.get("schema", top).refuse("a benchmark says which version it is written for: begin with schema: 1")
    for key in ("title", "data", "threats", "models", "attacks"):
        if key not in found:
            top.refuse(f"the benchmark has no {key}: add {key}: {_EXAMPLES[key]}")
    return _Reading(path, found).bench()


_EXAMPLES = {
    "title": "WORDS",
    "data": "cifar10-demo",
    "threats": "[linf:8/255]",
    "models": "[tiny-vit]",
    "attacks": "[pgd]",
}


class _Reading:
    """The keys of one file, read in an order in which each finds what it needs."""

    def __init__(self, path: Path, found: dict[str, Item]) -> None:
        self.path, self.found = path, found

    def bench(self) -> Bench:
        found = self.found
        title = found["title"].text("title")
        source = found["source"].text("source") if "source" in found else ""
        notes = _words(found["notes"]) if "notes" in found else ""
        settings = self._settings()
        data = found["data"].text("data")
        images = checked(found["data"], lambda: rows(data, settings.limit, settings.transform))
        threats = self._threats()
        seeds = tuple(item.whole("a seed", 0, 2**63 - 1) for item in self._list("seeds")) or (0,)
        _once(self._list("seeds"), seeds, "seed")
        models = tuple(model for item in self._list("models") for model in self._model(item, images))
        attacks = tuple(self._attack(item) for item in self._list("attacks"))
        if not models or not attacks:
            found["models" if not models else "attacks"].refuse("the list is empty: name at least one")
        for what, known in (("model", models), ("attack", attacks)):
            self._labels_once(what, known)
        labels = Labels(models, attacks, tuple(threats))
        skip = tuple(self._pattern(item, labels, "skip") for item in self._list("skip"))
        overrides = tuple(self._pattern(item, labels, "overrides") for item in self._list("overrides"))
        changes: tuple[Model | Override, ...] = (*models, *overrides)
        for one in changes:
            self._data_fits(data, settings, one)
        for attack, item in zip(attacks, self._list("attacks"), strict=True):
            self._defined(attack, item, threats, models, skip)
        reference = references(self._list("reference"), labels, source, skip)
        across, down = self._axes(models, attacks, tuple(threats), seeds)
        return Bench(
            str(self.path), title, source, data, tuple(threats), seeds, models, attacks, settings, overrides, skip,
            reference, down, across, notes,
        )  # fmt: skip

    def _list(self, key: str) -> list[Item]:
        return self.found[key].items(key) if key in self.found else NOTHING

    def _settings(self) -> Settings:
        given: dict[str, Any] = {}
        if "defaults" in self.found:
            given = some(self.found["defaults"], "defaults", SETTINGS)
        if "limit" in self.found:
            if "limit" in given:
                self.found["limit"].refuse("limit stands twice, here and in defaults: keep one")
            given["limit"] = self.found["limit"].whole("limit", 1)
        return Settings(**given)

    def _data_fits(self, data: str, settings: Settings, one: Model | Override) -> None:
        """What a row or an override changes about the images must suit the data of the file."""
        changed = one.settings if isinstance(one, Model) else one.set
        if "limit" in changed or "transform" in changed:
            checked(
                Item(None, one.line, printable(str(self.path))),
                lambda: rows(data, changed.get("limit", settings.limit), changed.get("transform", settings.transform)),
            )

    def _threats(self) -> dict[str, Threat]:
        threats: dict[str, Threat] = {}
        for item in self._list("threats"):
            for threat in checked(item, partial(parse_threats, item.text("a threat"))):
                if str(threat) in threats:
                    item.refuse(f"the threat {threat} stands twice: keep one")
                threats[str(threat)] = threat
        if not threats:
            self.found["threats"].refuse("the list is empty: name at least one, as in threats: [linf:8/255]")
        return threats

    # Models.

    def _model(self, item: Item, images: Rows) -> Iterable[Model]:
        said = item.keys("a model", ("model", "label", "published", *OPTIONS, *SETTINGS)) if _is_map(item) else {}
        published = said["published"].truth("published") if "published" in said else False
        label = said["label"].text("label") if "label" in said else None
        if said and "model" not in said:
            if not (published and label):
                item.refuse("a model needs its name: add model: ID, or label: WORDS with published: true")
            return [Model(label, label, item.line, True)]
        named = said.get("model", item)
        text = named.text("a model")
        options = {key: said[key].plain for key in OPTIONS if key in said}
        settings = values(said, SETTINGS)
        known = entries()
        if any(c in text for c in WILD) and text not in known:
            if label or options:
                item.refuse("a wildcard names several models: drop label and the options of a file")
            fitting = [entry for name, entry in known.items() if fnmatchcase(name, text) and images.taught(entry)]
            if not fitting:
                named.refuse(f"no model of the zoo for this data fits '{text}': vitattack models list shows them")
            return [Model(e.id, e.id, named.line, published or not public(e), {}, settings) for e in fitting]
        return [self._one(named, text, label or text, published, options, settings, images)]

    def _one(
        self,
        item: Item,
        text: str,
        label: str,
        published: bool,
        options: dict[str, Any],
        settings: dict[str, Any],
        images: Rows,
    ) -> Model:
        known = entries()
        checked(item, lambda: refuse_former_id(text, known))
        if text in known or text.startswith(HUBS):
            if options:
                item.refuse(f"{next(iter(options))} describes a checkpoint file, '{text}' is none: drop it")
        elif text.endswith(SUFFIXES):
            checked(item, lambda: check_file(text, options))
        else:
            checked(item, lambda: unknown("model", text, [*known, "timm:ARCH.TAG", "FILE.safetensors"]))
        entry = known.get(text) or known.get(str(options.get("like")))
        if entry is not None and not published and not images.suits(entry):
            item.refuse(
                f"'{text}' has {entry.num_classes} classes, the data has {images.classes}: "
                "choose a model that was trained for it"
            )
        if text in known and not public(known[text]):
            published = True  # nothing here can fetch or build it: its row shows what was published
        return Model(text, label, item.line, published, options, settings)

    def _labels_once(self, what: str, named: Iterable[Model | Attack]) -> None:
        seen: dict[str, int] = {}
        for one in named:
            if one.label in seen:
                raise UsageError(
                    f"{self.path}:{one.line}: the {what} '{one.label}' stands twice, first in line {seen[one.label]}: "
                    "keep one, or give it another label"
                )
            seen[one.label] = one.line

    # Attacks.

    def _attack(self, item: Item) -> Attack:
        said = item.keys("an attack", ("attack", "label", "published")) if _is_map(item) else {}
        published = said["published"].truth("published") if "published" in said else False
        label = said["label"].text("label") if "label" in said else None
        if said and "attack" not in said:
            if not (published and label):
                item.refuse("an attack needs its text: add attack: pgd, or label: WORDS with published: true")
            text, named = label, item
        else:
            named = said.get("attack", item)
            text = named.text("an attack")
        if CLEAN in (text, label):
            named.refuse("clean accuracy is measured in any case: drop clean from the attacks")
        if named is item and said:
            return Attack(text, text, item.line, True)
        if text.count("(") != text.count(")"):
            named.refuse(f"the brackets of '{text}' do not close: put an attack with commas in quotes")
        if not published:
            checked(named, lambda: outline(text))
        return Attack(text, label or text, named.line, published)

    def _defined(
        self,
        attack: Attack,
        item: Item,
        threats: dict[str, Threat],
        models: tuple[Model, ...],
        skip: tuple[Override, ...],
    ) -> None:
        """An attack that is not defined for a threat must be skipped there."""
        for name, threat in threats.items():
            cells = ((m, attack, name) for m in models)
            if attack.published or all(any(fits(s, *cell) for s in skip) for cell in cells):
                continue
            try:
                outline(attack.text, threat)
            except WrongThreat as error:
                reason = str(error).partition(": ")[0]
                item.refuse(f"{reason}: drop it, or add skip: [{{attacks: {attack.label!r}, threats: {name!r}}}]")

    # What refers to them.

    def _pattern(self, item: Item, labels: Labels, key: str) -> Override:
        known = ("models", "attacks", "threats", *(("set",) if key == "overrides" else ()))
        said = item.keys(f"an entry of {key}", known)
        if not said:
            item.refuse(f"an entry of {key} names models, attacks or threats: write {{models: ID}}")
        patterns = {}
        for axis in ("models", "attacks", "threats"):
            patterns[axis] = tuple(part.text(axis) for part in said[axis].items(axis)) if axis in said else ()
            if axis in said and not patterns[axis]:
                said[axis].refuse(f"{axis} is an empty list: name at least one, or drop it, which means all of them")
            for pattern in patterns[axis]:
                if not labels.any_fits(axis, pattern):
                    checked(said[axis], partial(unknown, axis[:-1], pattern, labels.known(axis)))
        settings = some(said["set"], "set", SETTINGS) if "set" in said else {}
        if key == "overrides" and not settings:
            item.refuse("an override sets something: add set: {batch_size: 32}")
        return Override(**patterns, set=settings, line=item.line)

    def _axes(
        self, models: tuple[Model, ...], attacks: tuple[Attack, ...], threats: tuple[str, ...], seeds: tuple[int, ...]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Columns and rows; what nobody names goes across if there are several of it."""
        asked: dict[str, tuple[str, ...]] = {}
        for key in ("rows", "columns"):
            asked[key] = tuple(item.text(key) for item in self._list(key))
            for item, axis in zip(self._list(key), asked[key], strict=True):
                if axis not in AXES:
                    checked(item, partial(unknown, "axis", axis, AXES))
                if (*asked.get("rows", ()), *asked.get("columns", ())).count(axis) > 1:
                    item.refuse(f"{axis} stands twice in rows and columns: keep one")
        down = asked["rows"] or tuple(axis for axis in AXES if axis not in asked["columns"])[:1]
        rest = tuple(axis for axis in ("attack", "threat", "model") if axis not in (*down, *asked["columns"]))
        # clean accuracy stands beside the attacks, so that there are always several
        counts = dict(zip(AXES, (len(models), len(attacks) + 1, len(threats), len(seeds)), strict=True))
        more = tuple(axis for axis in AXES if axis not in (*down, *asked["columns"]) and counts[axis] > 1)
        across = (
            (*asked["columns"], *more) if asked["columns"] else (*rest, *(axis for axis in more if axis not in rest))
        )
        return across, down


def _once(items: list[Item], values: tuple[Any, ...], what: str) -> None:
    for at, value in enumerate(values[: len(items)]):
        if value in values[:at]:
            items[at].refuse(f"the {what} {value} stands twice: keep one")


def _words(item: Item) -> str:
    """A text that may go over several lines."""
    joined = " ".join(item.value.split()) if isinstance(item.value, str) else item.value
    return replace(item, value=joined).text("notes")


def _is_map(item: Item) -> bool:
    return isinstance(item.value, dict)
