"""A model loaded by name, with its origin."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from vitattack.models.flops import count_forward
from vitattack.models.victim import Victim
from vitattack.models.zoo.entry import ZooEntry
from vitattack.models.zoo.figures import figures_of


@dataclass(frozen=True)
class LoadedModel:
    """A victim ready for attack, its zoo entry if it has one, and a record of its origin."""

    victim: Victim
    entry: ZooEntry | None
    record: dict[str, Any]
    labels: tuple[str, ...] | None = None  # names of its classes, by number
    files: tuple[Path, ...] | None = None  # everything it was read from, where the record does not tell

    @cached_property
    def sized_record(self) -> dict[str, Any]:
        """The record of a result; a model of unknown size is counted, which takes as long as some loads."""
        if self.record["source"] == "module" or (self.entry and figures_of(self.entry)):
            return self.record
        record = {**self.record, "parameters": sum(p.numel() for p in self.victim.parameters())}
        with suppress(Exception):  # not every model runs on shapes alone
            record["flops"] = count_forward(self.victim)[0]
        return record
