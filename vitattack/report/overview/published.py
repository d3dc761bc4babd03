"""Published numbers of zoo models beside measured ones, where data, threat and metric are the same."""

from __future__ import annotations

from dataclasses import dataclass

from vitattack.core.errors import VitattackError
from vitattack.models.zoo.catalogue import zoo_entries
from vitattack.models.zoo.entry import Reported, ZooEntry
from vitattack.models.zoo.figures import figures_of
from vitattack.models.zoo.reported import at_budget
from vitattack.records.stats import Gap, gap
from vitattack.report.overview.overview import Row


@dataclass(frozen=True)
class Published:
    """A published accuracy in [0,1], and by how much the measured one differs."""

    value: float
    n: int | None
    source: str
    gap: Gap


@dataclass(frozen=True)
class ModelFacts:
    """What the zoo knows of a row's model."""

    parameters: int | None = None
    flops: int | None = None
    clean: Published | None = None
    robust: Published | None = None


def model_facts(row: Row) -> ModelFacts:
    """The facts about the model of a row; none for models that are not in the zoo."""
    entry = _entry(row)
    if entry is None:
        return ModelFacts()
    figures = figures_of(entry)
    return ModelFacts(
        figures.parameters if figures else None,
        figures.flops if figures else None,
        _published(entry, row, "clean"),
        _published(entry, row, "robust"),
    )


def _entry(row: Row) -> ZooEntry | None:
    try:
        return zoo_entries().get(row.model)
    except VitattackError:  # the user's own zoo file is wrong: a page can do without
        return None


def _published(entry: ZooEntry, row: Row, metric: str) -> Published | None:
    """The lowest of the numbers that were published for the same question."""
    found = [each for each in entry.reported if each.metric == metric and _fits(each, entry, row)]
    if not found:
        return None
    lowest = min(found, key=lambda each: each.value)
    measured = row.clean if metric == "clean" else row.worst
    value = lowest.value / 100
    return Published(value, lowest.n, lowest.source, gap(measured, value, lowest.n))


def _fits(reported: Reported, entry: ZooEntry, row: Row) -> bool:
    protocol = row.runs[0].provenance.get("protocol")
    data = str(protocol.get("data", "")) if isinstance(protocol, dict) else ""
    same_images = data in (entry.dataset, f"{entry.dataset}-demo") or bool(data and data in reported.protocol)
    return same_images and (reported.metric == "clean" or at_budget(reported, entry, row.threat))
