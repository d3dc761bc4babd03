"""Results of jobs: values computed from records, each once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from vitattack.core.errors import UsageError
from vitattack.core.file_hashes import Marks
from vitattack.core.percent import percent, span
from vitattack.core.registry import did_you_mean
from vitattack.core.shown import Shown, made_by
from vitattack.records import stats
from vitattack.records.draws import number_of_draws
from vitattack.records.eps_curve import optimiser_failures
from vitattack.records.job import Job
from vitattack.records.packed import PackedRecords
from vitattack.records.record import SampleRecord, Status
from vitattack.records.report_section import Section
from vitattack.records.saved_examples import SavedExamples
from vitattack.records.stats import Accuracy
from vitattack.text.syntax import AttackSyntax, first_argument

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Result(Shown):
    """A finished job: its records, the sections its attack adds, and the doubts about its number."""

    TABLES = "vitattack.report.evaluation:result_tables"

    job: Job
    records: Sequence[SampleRecord] = field(repr=False)
    seconds: float
    doubts: tuple[str, ...]
    provenance: dict[str, Any] = field(repr=False)
    folder: Path | None = None
    learned: dict[str, Any] | None = field(default=None, repr=False)
    sections: tuple[Section, ...] = field(default=(), repr=False)

    def __repr__(self) -> str:
        return f"Result({self.job.model}, {label(self.job.attack)}, {self.job.threat}, {_numbers(self.clean, self.robust)})"

    @property
    def examples(self) -> SavedExamples | None:
        """The adversarial examples that were kept with `save_adv`, by index; None without any."""
        saved = SavedExamples(self.folder) if self.folder else None
        return saved if saved is not None and len(saved) else None

    def unstored(self) -> Result:
        """A copy that names no folder, with everything computed so far."""
        copy = replace(self)
        vars(copy).update(vars(self), folder=None)
        return copy

    def with_sections(self, sections: Sequence[Section]) -> Result:
        """A copy with more sections and their doubts, and with everything computed so far."""
        copy = replace(self)
        doubts = tuple(doubt for section in sections for doubt in section.doubts)
        vars(copy).update(vars(self), sections=(*self.sections, *sections), doubts=(*self.doubts, *doubts))
        return copy

    def packed(self) -> Result:
        """A copy that holds its records as columns; its numbers are computed before, while they are objects."""
        if isinstance(self.records, PackedRecords):
            return self
        numbers = {name: getattr(self, name) for name, of in vars(Result).items() if isinstance(of, cached_property)}
        copy = replace(self, records=PackedRecords(self.records))
        vars(copy).update(numbers)
        return copy

    @property
    def n(self) -> int:
        return len(self.records)

    @cached_property
    def clean(self) -> Accuracy:
        return stats.clean_accuracy(self.records)

    @cached_property
    def robust(self) -> Accuracy:
        return stats.robust_accuracy(self.records)

    @cached_property
    def mean_passes(self) -> tuple[float, float]:
        """Forwards and backwards per attacked sample."""
        return stats.mean_passes(self.records)

    @cached_property
    def _statuses(self) -> Counter[Status]:
        return Counter(r.status for r in self.records)

    def count(self, status: Status) -> int:
        return self._statuses[status]

    @cached_property
    def fragile(self) -> int:
        return sum(r.fragile for r in self.records)

    @cached_property
    def violations(self) -> int:
        return sum(r.violation for r in self.records)

    @cached_property
    def draws(self) -> int | None:
        """Answers of a random model to every image; None for a deterministic model."""
        return number_of_draws(self.records)

    @cached_property
    def mean_first_success(self) -> float | None:
        """Mean step of the first success among fooled samples."""
        steps = [r.first_fooled for r in self.records if r.status == "fooled" and r.first_fooled >= 0]
        return sum(steps) / len(steps) if steps else None

    def section(self, name: str) -> Section | None:
        return next((section for section in self.sections if section.name == name), None)

    def json(self) -> dict[str, Any]:
        forwards, backwards = self.mean_passes
        return {
            "attack": self.job.attack,
            "threat": self.job.threat,
            "n": self.n,
            "clean": self.clean.json(),
            "robust": self.robust.json(),
            "clean_wrong": self.count("clean_wrong"),
            "fooled": self.count("fooled"),
            "invalid": self.count("invalid"),
            "fragile": self.fragile,
            "violations": self.violations,
            **({"draws": self.draws} if self.draws else {}),
            "mean_first_success": self.mean_first_success,
            "forwards": round(forwards, 3),
            "backwards": round(backwards, 3),
            "seconds": round(self.seconds, 3),
            "doubts": list(self.doubts),
            **{section.name: section.content for section in self.sections},
            "run": str(self.folder) if self.folder else None,
        }


def _numbers(clean: Accuracy, robust: Accuracy) -> str:
    """Both accuracies in words."""
    interval = span(robust.low, robust.high)
    return f"n={robust.n}, clean {percent(clean.accuracy)}, robust {percent(robust.accuracy)} ({interval})"


def label(attack: str) -> str:
    """The name of an attack in tables: without the wrapper that only measures candidates perceptually."""
    return (first_argument(attack) or attack) if attack.startswith("perceptual(") else attack


TEXTS = ("model", "attack", "threat")
DISTANCES = ("size", "distance")
COLUMNS = tuple(column.name for column in fields(SampleRecord) if column.name != "evidence")


def _texts(job: Job) -> dict[str, str]:
    return {"model": job.model, "attack": job.attack, "threat": job.threat}


def _columns(record: SampleRecord) -> dict[str, Any]:
    """A record as columns; evidence keeps its name unless a column of every record has it.

    Distances that are missing, and stored as -1, are infinite.
    """
    own = asdict(record)
    evidence = own.pop("evidence")
    for values in (own, evidence):
        values.update({name: math.inf for name in DISTANCES if values.get(name) == -1})
    taken = {*TEXTS, *own}
    return {**own, **{f"evidence {name}" if name in taken else name: value for name, value in evidence.items()}}


class Plot(Protocol):
    """A figure that notebooks show."""

    def save(self, path: str | Path) -> None:
        """Write FILE.pdf, .svg or .png."""


@dataclass(frozen=True, repr=False)
class Evaluation(Shown):
    """Several attacks, under one budget or several, on one model and the same samples; `e["pgd"]` is one result."""

    TABLES = "vitattack.report.evaluation:tables"

    results: tuple[Result, ...]
    inputs: Marks | None = field(default=None, repr=False, compare=False)  # files, before the run; None if unlisted
    syntax: Mapping[str, AttackSyntax] = field(default_factory=dict, repr=False, compare=False)  # of attacks, by text
    unfinished: int = 0  # jobs that other shards have not finished

    def __repr__(self) -> str:
        if not self.finished:
            return f"Evaluation(unfinished: {self.unfinished} jobs are left to other shards)"
        attacks = ", ".join(dict.fromkeys(label(result.job.attack) for result in self.results))
        doubts = f", {len(self.doubts)} doubt{'s' * (len(self.doubts) > 1)}" if self.doubts else ""
        about = f"{self.job.model}, {attacks}, {', '.join(self.threats)}, {self.job.data}"
        return f"Evaluation({about}, {_numbers(self.clean, self.worst_case)}{doubts})"

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def __getitem__(self, name: str | int | tuple[str, str]) -> Result:
        """The result of an attack by its text or place; with several budgets, of `(attack, threat)`."""
        if isinstance(name, int):
            return self.results[name]
        attack, threat = name if isinstance(name, tuple) else (name, None)
        fits = [
            r for r in self.results if attack in (r.job.attack, label(r.job.attack)) and threat in (None, r.job.threat)
        ]
        if len(fits) == 1:
            return fits[0]
        if fits:
            raise UsageError(f"'{attack}' ran under {len(fits)} budgets: write e['{attack}', '{fits[0].job.threat}']")
        if threat is not None and threat not in self.threats:
            raise UsageError(did_you_mean("threat", threat, self.threats))
        raise UsageError(did_you_mean("attack", attack, (label(result.job.attack) for result in self.results)))

    @property
    def job(self) -> Job:
        return self.results[0].job

    @property
    def finished(self) -> bool:
        """False after a shard if others have not finished every job: a worst case over some attacks would be none."""
        return bool(self.results) and not self.unfinished

    @property
    def n(self) -> int:
        return self.results[0].n if self.results else 0

    @property
    def clean(self) -> Accuracy:
        return self.results[0].clean

    @cached_property
    def threats(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(result.job.threat for result in self.results))

    @cached_property
    def _by_threat(self) -> dict[str, Evaluation]:
        if len(self.threats) < 2:
            return dict.fromkeys(self.threats, self)
        return {t: Evaluation(tuple(r for r in self.results if r.job.threat == t)) for t in self.threats}

    def under(self, threat: str) -> Evaluation:
        """The results under one budget."""
        return self._by_threat[threat]

    @cached_property
    def worst_case(self) -> Accuracy:
        """The per-sample worst case over all attacks, and over all budgets if there are several."""
        if len(self.results) == 1:
            return self.results[0].robust
        return stats.worst_case([result.records for result in self.results])

    @cached_property
    def union(self) -> Accuracy | None:
        """The per-sample worst case over threats of several kinds, such as linf and l2; None if all are of one kind."""
        kinds = {threat.partition(":")[0] for threat in self.threats}
        return self.worst_case if len(kinds) > 1 else None

    @cached_property
    def doubts(self) -> tuple[str, ...]:
        rising: list[str] = []
        if len(self.threats) > 1:
            rising = optimiser_failures([(threat, self.under(threat).worst_case) for threat in self.threats])
        return tuple(dict.fromkeys([*(doubt for result in self.results for doubt in result.doubts), *rising]))

    @cached_property
    def _paired(self) -> tuple[tuple[str, str, stats.Paired], ...]:
        strongest = min(self.results, key=lambda r: r.robust.correct)
        return tuple(
            (strongest.job.attack, other.job.attack, stats.mcnemar(strongest.records, other.records))
            for other in self.results
            if other is not strongest
        )

    def paired(self) -> tuple[tuple[str, str, stats.Paired], ...]:
        """Every attack against the strongest one, on the same samples; empty if budgets differ."""
        return () if len(self.threats) > 1 else self._paired

    def frame(self) -> pd.DataFrame:
        """A data frame with one row per sample and attack; evidence has columns of its own."""
        import pandas

        rows = [{**_texts(result.job), **_columns(record)} for result in self.results for record in result.records]
        return pandas.DataFrame(rows, columns=None if rows else [*TEXTS, *COLUMNS])

    def plot(self, kind: str = "accuracy", *, columns: Literal[1, 2] = 1, titles: bool = True) -> Plot:
        """A figure as `vitattack plot KIND` draws it: accuracy, passes, distance, budget, stages, referee or spatial."""
        plot: Plot = made_by("vitattack.report.plots.values:plot_of", self, kind, columns, titles)
        return plot

    def _curve(self) -> dict[str, Any]:
        if len(self.threats) < 2:
            return {}
        curve = [{"threat": t, "worst_case": self.under(t).worst_case.json()} for t in self.threats]
        return {"curve": curve} | ({"union": self.union.json()} if self.union else {})

    def json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "model": self.job.model,
            "threat": ",".join(self.threats),
            "data": self.job.data,
            "n": self.n,
            "seed": self.job.seed,
            "clean": self.clean.json(),
            "attacks": [result.json() for result in self.results],
            "worst_case": self.worst_case.json(),
            **self._curve(),
            "paired": [{"attack": a, "other": b, **p._asdict()} for a, b, p in self.paired()],
            "doubts": list(self.doubts),
            "run": str(self.results[0].folder.parent) if self.results[0].folder else None,
            "provenance": self.results[0].provenance,
        }
