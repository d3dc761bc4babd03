"""Verdicts of stored runs, image by image, for comparisons of two attacks."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from red_team import resolved

from vitattack.attacks import attack_text
from vitattack.data import DataSet, load_data
from vitattack.models.victim import Victim, model_digest
from vitattack.models.zoo.file_options import FileOptions
from vitattack.records.job import Job
from vitattack.records.record import SampleRecord
from vitattack.records.stored_result import last_records
from vitattack.text import yaml_lines


@dataclass(frozen=True)
class Row:
    """A model, `redteam:NAME` among others, and the images it is attacked on."""

    model: str
    name: str = ""
    threat: str = "linf:8/255"
    data: str = "cifar10-demo[:256]"
    arch: str | None = None
    arch_kwargs: dict[str, Any] = field(default_factory=dict)
    normalize: str | None = None
    held_out: bool = False

    @property
    def source(self) -> tuple[str, FileOptions]:
        """What the model is loaded from."""
        return resolved(self.model, FileOptions(self.arch, self.arch_kwargs, normalize=self.normalize))

    @property
    def shown(self) -> str:
        return self.name or self.model


def read_rows(path: Path) -> list[Row]:
    known = [f.name for f in fields(Row)]
    return [
        Row(**{k: v.plain for k, v in i.keys("a row", known).items()})
        for i in yaml_lines.load_yaml(path, "list of rows").items("rows")
    ]


@dataclass(frozen=True)
class Outcome:
    """The record of an image and its share of the seconds its batch took."""

    record: SampleRecord
    seconds: float
    stage: str

    @property
    def passes(self) -> int:
        return self.record.forwards + self.record.backwards

    @property
    def assurance(self) -> int:
        """Passes that `auto` spent after its search."""
        return sum(int(self.record.evidence.get(f"spent {name}", 0)) for name in ("probe", "full"))

    @property
    def stands(self) -> bool:
        return self.record.status == "robust"

    @property
    def attacked(self) -> bool:
        return self.record.clean == self.record.label


def stored(folder: Path, attack: str) -> dict[int, Outcome]:
    """The last stored record of each image; the seconds of the run are shared out by passes."""
    found = {record.index: record for record in last_records(folder)}
    events = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    named = attack_text.example_attack(attack)
    seconds, stages = sum(event.get("seconds", 0.0) for event in events), named.attack.stage_names(named.text)
    price = seconds / max(1, sum(r.forwards + r.backwards for r in found.values()))
    fell = {image: int(record.evidence.get("stage", -1)) for image, record in found.items()}
    return {
        image: Outcome(
            record,
            price * (record.forwards + record.backwards),
            stages[fell[image]] if 0 <= fell[image] < len(stages) else "-",
        )
        for image, record in found.items()
    }


def references(stores: Sequence[Path], attack: str, victim: Victim, threat: str, data: DataSet) -> dict[int, Outcome]:
    """Outcomes of stored runs of an attack on this model, for those images of the data that have one."""
    weights, wanted = model_digest(victim), set(data.rows)
    found: dict[int, Outcome] = {}
    for path in sorted(path for store in stores for path in store.glob("*/job.json")):
        content = json.loads(path.read_text())
        job = Job(**{f.name: content[f.name] for f in fields(Job)})
        if (job.attack, job.weights, job.threat) != (attack, weights, threat):
            continue
        if not (path.parent / "events.jsonl").exists():
            continue
        theirs = load_data(job.data)
        if theirs.set_name != data.set_name or theirs.digest() != job.pixels:
            print(f"{path.parent.name} is about other images: left out", file=sys.stderr)
            continue
        found |= {i: o for i, o in stored(path.parent, attack).items() if i in wanted and i not in found}
    return found
