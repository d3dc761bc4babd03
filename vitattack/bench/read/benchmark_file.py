"""Reader of benchmark files: checks every name, budget and number, and reports a mistake as FILE:LINE."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from vitattack.bench.read.attack_columns import attack_column, check_attack_options
from vitattack.bench.read.cell_settings import read_settings
from vitattack.bench.read.model_rows import model_rows
from vitattack.bench.read.references import references
from vitattack.bench.read.selectors import Labels, selector
from vitattack.bench.read.unopened_data import look_up_data
from vitattack.bench.schema import AXES, Benchmark, CellSettings, Named
from vitattack.core.assets import BENCHMARKS
from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.core.words import printable
from vitattack.text.validate import LARGEST_SEED
from vitattack.text.yaml_lines import Item, checked, is_schema, load_yaml, refuse_unknown
from vitattack.threats.base import Threat, parse_threats, union_members

KEYS = (
    *("schema", "title", "source", "notes", "data", "limit", "threats", "seeds", "models", "attacks", "defaults"),
    *("overrides", "skip", "reference", "rows", "columns"),
)
REQUIRED = {  # with an example of each
    "title": "WORDS",
    "data": "cifar10-demo",
    "threats": "[linf:8/255]",
    "models": "[tiny-vit]",
    "attacks": "[pgd]",
}


def shipped_benchmarks() -> dict[str, Path]:
    """Files of the benchmarks that come with vitattack, by name."""
    return {path.stem: path for path in sorted(BENCHMARKS.glob("*.yaml"))}


def read_benchmark(text: str, *, check_attacks: bool = True) -> Benchmark:
    """Read a benchmark by its name, which stands for benchmarks/NAME.yaml, or from the path of a YAML file.

    Without `check_attacks` their names are checked but not their options, and torch is not imported.
    """
    path = Path(text) if text.endswith((".yaml", ".yml")) else shipped_benchmarks().get(text)
    if path is None:
        raise UsageError(did_you_mean("benchmark", printable(text), [*shipped_benchmarks(), "FILE.yaml"]))
    top = load_yaml(path, shipped=path.parent == BENCHMARKS)
    items = top.keys("a benchmark", KEYS)
    if "schema" not in items or not is_schema(items["schema"].value):
        items.get("schema", top).refuse("a benchmark says which version it is written for: begin with schema: 1")
    for key, example in REQUIRED.items():
        if key not in items:
            top.refuse(f"the benchmark has no {key}: add {key}: {example}")
    bench = _Reader(path, items).read()
    if check_attacks:
        check_attack_options(bench)
    return bench


class _Reader:
    """The keys of one file, read in an order in which each finds what it refers to."""

    def __init__(self, path: Path, items: dict[str, Item]) -> None:
        self.path, self.items = path, items

    def read(self) -> Benchmark:
        title = self.items["title"].text("title")
        source = self.items["source"].text("source") if "source" in self.items else ""
        notes = _folded(self.items["notes"]).text("notes") if "notes" in self.items else ""
        defaults = self._defaults()
        data_text = self.items["data"].text("data")
        data = checked(self.items["data"], lambda: look_up_data(data_text, defaults.limit, defaults.transform))
        threats, unions = self._threats()
        seeds = self._seeds()
        models = tuple(row for item in self._list("models") for row in model_rows(item, data))
        attacks = tuple(map(attack_column, self._list("attacks")))
        for key, named in (("models", models), ("attacks", attacks)):
            if not named:
                self.items[key].refuse("the list is empty: name at least one")
        self._check_labels("model", models)
        self._check_labels("attack", attacks)
        labels = Labels(models, attacks, tuple(threats))
        skip = tuple(selector(item, labels, "skip") for item in self._list("skip"))
        overrides = tuple(selector(item, labels, "overrides") for item in self._list("overrides"))
        for row in models:
            self._check_data(data_text, defaults, row.settings, row.line)
        for override in overrides:
            self._check_data(data_text, defaults, override.set, override.line)
        published = references(self._list("reference"), labels, source, skip)
        # clean accuracy stands beside the attacks, so that there are always several columns of them
        counts = {"model": len(models), "attack": len(attacks) + 1, "threat": len(threats), "seed": len(seeds)}
        rows, columns = self._axes(counts)
        return Benchmark(
            path=str(self.path),
            title=title,
            source=source,
            data=data_text,
            threats=tuple(threats),
            seeds=seeds,
            models=models,
            attacks=attacks,
            settings=defaults,
            overrides=overrides,
            skip=skip,
            reference=published,
            rows=rows,
            columns=columns,
            notes=notes,
            unions=unions,
        )

    def _list(self, key: str) -> list[Item]:
        return self.items[key].items(key) if key in self.items else []

    def _defaults(self) -> CellSettings:
        settings = read_settings(self.items["defaults"], "defaults") if "defaults" in self.items else {}
        if "limit" in self.items:
            if "limit" in settings:
                self.items["limit"].refuse("limit stands twice, here and in defaults: keep one")
            settings["limit"] = self.items["limit"].whole("limit", 1)
        return CellSettings(**settings)

    def _check_data(self, data: str, defaults: CellSettings, changed: Any, line: int) -> None:
        """Limit and transform of a row or an override must suit the data of the file."""
        if "limit" in changed or "transform" in changed:
            limit = changed.get("limit", defaults.limit)
            transform = changed.get("transform", defaults.transform)
            place = Item(None, line, printable(str(self.path)))
            checked(place, lambda: look_up_data(data, limit, transform))

    def _threats(self) -> tuple[dict[str, Threat], tuple[tuple[str, ...], ...]]:
        """Threats by canonical text, those of unions among them, and the unions."""
        threats: dict[str, Threat] = {}
        unions: list[tuple[str, ...]] = []
        named: list[str] = []
        for item in self._list("threats"):
            text = item.text("a threat")
            found = {str(threat): threat for threat in checked(item, partial(parse_threats, text))}
            is_union = len(union_members(text)) > 1
            for name in ["+".join(found)] if is_union else found:
                if name in named:
                    item.refuse(f"the threat {name} stands twice: keep one")
                named.append(name)
            unions += [tuple(found)] if is_union else []
            threats |= found
        if not threats:
            self.items["threats"].refuse("the list is empty: name at least one, as in threats: [linf:8/255]")
        return threats, tuple(unions)

    def _seeds(self) -> tuple[int, ...]:
        seeds: list[int] = []
        for item in self._list("seeds"):
            seed = item.whole("a seed", 0, LARGEST_SEED)
            if seed in seeds:
                item.refuse(f"the seed {seed} stands twice: keep one")
            seeds.append(seed)
        return tuple(seeds) or (0,)

    def _check_labels(self, what: str, named: Iterable[Named]) -> None:
        lines: dict[str, int] = {}
        for one in named:
            if one.label in lines:
                raise UsageError(
                    f"{self.path}:{one.line}: the {what} '{one.label}' stands twice, first in line {lines[one.label]}: "
                    "keep one, or give it another label"
                )
            lines[one.label] = one.line

    def _axes(self, counts: dict[str, int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Axes of rows and columns; an axis that neither names becomes a column if it has several values."""
        asked: dict[str, tuple[str, ...]] = {}
        for key in ("rows", "columns"):
            asked[key] = tuple(item.text(key) for item in self._list(key))
            for item, axis in zip(self._list(key), asked[key], strict=True):
                if axis not in AXES:
                    checked(item, partial(refuse_unknown, "axis", axis, AXES))
                if (*asked.get("rows", ()), *asked.get("columns", ())).count(axis) > 1:
                    item.refuse(f"{axis} stands twice in rows and columns: keep one")
        rows = asked["rows"] or tuple(axis for axis in AXES if axis not in asked["columns"])[:1]
        several = [axis for axis in AXES if axis not in (*rows, *asked["columns"]) and counts[axis] > 1]
        first = asked["columns"] or tuple(axis for axis in ("attack", "threat", "model") if axis not in rows)
        return rows, (*first, *(axis for axis in several if axis not in first))


def _folded(item: Item) -> Item:
    """A text of several lines as one line."""
    return replace(item, value=" ".join(item.value.split())) if isinstance(item.value, str) else item
