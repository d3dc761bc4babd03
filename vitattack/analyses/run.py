"""A run of an analysis: its models, images and store, and whatever it does that others have to know of."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vitattack.analyses.base import Analysis
from vitattack.analyses.figure import Figure
from vitattack.analyses.findings import Findings, Row
from vitattack.analyses.parts import FOLDER, kept_parts
from vitattack.core.errors import UsageError
from vitattack.core.file_hashes import Marks, marks_of
from vitattack.core.rng import SampleRng, seeded
from vitattack.core.runtime import resolve_device
from vitattack.core.table import Table
from vitattack.core.versions import COMPUTING, package_versions
from vitattack.core.words import safe_file_name
from vitattack.evaluation.batch_runner import read_batch
from vitattack.evaluation.evaluate import evaluate
from vitattack.evaluation.files_read import files_named
from vitattack.evaluation.listener import EvaluationListener
from vitattack.evaluation.prepare import Prepared, images_of, prepare, preprocessing
from vitattack.evaluation.provenance import provenance
from vitattack.evaluation.setup import Setup
from vitattack.models.victim import Victim, frozen
from vitattack.models.zoo.file_options import FileOptions
from vitattack.records.result import Evaluation
from vitattack.text.syntax import AttackSource, AttackSyntax
from vitattack.threats.base import Threat, parse_threats
from vitattack.threats.lp import LpBall

Model = str | nn.Module
VERSION = 1  # raised when equal questions give other parts


class AnalysisRun:
    """What an analysis works with: `open` for a model and its images, `evaluate` for attacks, `parts` for anything else.

    `setup.out` is a folder even where nothing is to be kept, a temporary one then.
    """

    def __init__(
        self,
        name: str,
        analysis: Analysis,
        models: Sequence[Model],
        setup: Setup,
        threat: str,
        options: dict[str, FileOptions],
        listener: EvaluationListener,
    ) -> None:
        self.name, self.analysis, self.models, self.setup, self.threat = name, analysis, tuple(models), setup, threat
        self._options, self._listener = options, listener
        self._inputs: dict[Path, Any] | None = {}
        self._provenance: dict[str, Any] = {}
        self._data, self._n = "", 0

    @property
    def named(self) -> tuple[tuple[str, Model], ...]:
        """The models with a name each, as tables show it."""
        return tuple(zip(names_of(self.models), self.models, strict=True))

    @property
    def budgets(self) -> tuple[Threat, ...]:
        return parse_threats(self.threat)

    @property
    def budget(self) -> Threat:
        """The budget of an analysis of one."""
        first, *more = self.budgets
        if more:
            raise UsageError(f"{self.name} is of one budget: give one --threat")
        return first

    @property
    def ball(self) -> LpBall:
        """The budget of an analysis of one ball."""
        if not isinstance(self.budget, LpBall):
            raise UsageError(f"{self.name} is of balls: write --threat linf:8/255 or l2:0.5")
        return self.budget

    @property
    def data_text(self) -> str | None:
        """The data with their rows as one text; None for images from Python."""
        data, limit = self.setup.data, self.setup.limit
        if not isinstance(data, str):
            return None
        return data if limit is None else f"{data}[limit:{limit}]"

    @property
    def root(self) -> Path:
        return Path(self.setup.out or ".")

    def setup_of(self, model: Model) -> Setup:
        """The setup for one of the models, with what is known of its file."""
        options = self._options.get(model, FileOptions()) if isinstance(model, str) else None
        return replace(self.setup, options=options)

    def open(self, model: Model, data: str | None = None) -> Prepared:
        """A model on its device with the images at its size: those of the run, or others."""
        named = marks_of(files_named(model)) if isinstance(model, str) else None
        setup = self.setup_of(model)
        if data is not None:
            setup = replace(setup, data=data, limit=None)
        return self._opened(model, prepare(model, setup, resolve_device(setup.device, model)), named)

    def other_images(self, model: Model, opened: Prepared, data: str) -> Prepared:
        """An opened model with other images of the same classes; nothing is loaded again."""
        setup = replace(opened.setup, data=data)
        images = images_of(setup, preprocessing(setup.transform, opened.victim))
        return self._opened(model, opened.with_images(images, setup), {} if isinstance(model, str) else None)

    def _opened(self, model: Model, prepared: Prepared, named: Marks | None) -> Prepared:
        files = prepared.files(model, None, perceptual=False) if isinstance(model, str) else None
        self._read(None if files is None or named is None else {**marks_of(files), **named})
        self._seen(prepared.images.text, len(prepared.images))
        if not self._provenance:
            self._provenance = provenance(prepared.device, prepared.job(), prepared.images.protocol)
        return prepared

    def evaluate(
        self, model: Model, attacks: AttackSource | Sequence[AttackSource], threat: str | None = None, **changes: Any
    ) -> Evaluation:
        """Attacks on a model under the budgets of the run or others: the very runs, keys and files of `vitattack eval`."""
        setup = replace(self.setup_of(model), **changes)
        listed = [attacks] if isinstance(attacks, str | AttackSyntax) else list(attacks)
        found = evaluate(model, listed, threat=threat or self.threat, setup=setup, listener=self._listener)
        self._read(found.inputs)
        self._seen(found.job.data, found.n)
        self._provenance = self._provenance or dict(found.results[0].provenance)
        return found

    def parts(
        self, prepared: Prepared, count: int, make: Callable[[int], dict[str, Any]], what: str, **settings: Any
    ) -> list[dict[str, Any]]:
        """Plain data for the numbers below `count`, each made once and stored, with seeded generators and a frozen victim.

        `settings` are whatever else the parts depend on than the model, the images, and the analysis with its parameters.
        """
        asked = {**self.analysis.settings(), **settings, "version": VERSION, "torch": package_versions(COMPUTING)}
        # `threat` of the key, since a budget changes what is found; "" where nothing is attacked
        job = prepared.job(f"analyze {self.name}", self.threat, settings=json.dumps(asked, sort_keys=True, default=str))
        path = self.root / FOLDER / f"{safe_file_name(self.name)}-{job.key}.jsonl"
        noise = SampleRng(self.setup.seed, (0,)).child(self.name)

        def made(number: int) -> dict[str, Any]:
            with seeded(noise.child("part", number)):
                return make(number)

        fresh = self.setup.fresh or bool(prepared.fingerprint.unknown)
        with frozen(prepared.victim):
            return kept_parts(path, count, made, what, fresh=fresh)

    def over_batches(
        self,
        prepared: Prepared,
        measure: Callable[[Tensor, Tensor, tuple[int, ...]], dict[str, Any]],
        what: str = "",
        **settings: Any,
    ) -> list[dict[str, Any]]:
        """What `measure` finds in each batch of images, labels and rows: sums or lists, whatever adds up later."""
        batches = list(prepared.images.cut(self.setup.batch_size))

        def make(number: int) -> dict[str, Any]:
            rows = tuple(batches[number])
            x, y, _ = read_batch(prepared.images, rows, prepared.victim, prepared.device)
            return measure(x, y, rows)

        return self.parts(prepared, len(batches), make, what or f"{self.name} of {prepared.victim.name}", **settings)

    def rng(self, rows: Sequence[int], name: str) -> SampleRng:
        """Noise for these images: the same in any batch."""
        return SampleRng(self.setup.seed, tuple(rows)).child(name)

    def findings(
        self,
        rows: Sequence[Row],
        tables: Sequence[Table],
        figures: Sequence[Figure],
        remarks: Iterable[str] = (),
        *,
        models: Sequence[str] | None = None,
    ) -> Findings:
        """What was found, with everything that is known of the run."""
        return Findings(
            self.name,
            self.analysis.settings(),
            tuple(models if models is not None else names_of(self.models)),
            self._data,
            self.threat,
            self._n,
            tuple(rows),
            tuple(tables),
            tuple(figures),
            tuple(remarks),
            self._provenance,
            self._inputs,
        )

    def reads(self, *paths: Path) -> None:
        """Files that the numbers depend on besides those of models and images."""
        self._read(marks_of(paths))

    def unlisted(self) -> None:
        """Say that the numbers depend on something that cannot be listed, so that they are computed each time."""
        self._inputs = None

    def _read(self, marks: Marks | None) -> None:
        self._inputs = None if marks is None or self._inputs is None else {**marks, **self._inputs}

    def _seen(self, data: str, n: int) -> None:
        self._data, self._n = self._data or data, self._n or n


def names_of(models: Sequence[Model]) -> list[str]:
    """A name for each model; modules of equal names are numbered."""
    names: list[str] = []
    for model in models:
        name = model if isinstance(model, str) else model.name if isinstance(model, Victim) else type(model).__name__
        taken = sum(other == name or other.startswith(f"{name} #") for other in names)
        names.append(f"{name} #{taken + 1}" if taken and not isinstance(model, str) else name)
    return names
