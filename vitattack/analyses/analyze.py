"""`analyze`: an analysis by name, of one model or several side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields as fields_of
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vitattack.analyses.catalogue import ANALYSES
from vitattack.analyses.findings import Findings
from vitattack.analyses.landscape.store_run import ask_store
from vitattack.analyses.run import AnalysisRun, Model, names_of
from vitattack.analyses.words import bound, budget_of, check_models_count
from vitattack.core.errors import UsageError
from vitattack.core.notebook import in_notebook
from vitattack.core.registry import did_you_mean
from vitattack.core.runtime import numerics
from vitattack.evaluation.listener import EvaluationListener
from vitattack.evaluation.notebook_progress import NotebookProgress
from vitattack.evaluation.setup import DEFAULT_MODEL, Setup
from vitattack.models.zoo.file_options import FileOptions
from vitattack.models.zoo.names import options_by_model

SETUP = tuple(field.name for field in fields_of(Setup))


@torch.inference_mode(False)
def analyze(
    name: str,
    models: Model | Sequence[Model] = DEFAULT_MODEL,
    *,
    threat: str | None = None,
    setup: Setup | None = None,
    parameters: Mapping[str, Any] | None = None,
    listener: EvaluationListener | None = None,
    **given: Any,
) -> Findings:
    """One analysis of one model or several, as `vitattack analyze` runs it: rows, tables, a frame and a figure.

    `vitattack analyze list` names the analyses. Parameters of the analysis and fields of `Setup` come as keywords:
    `analyze("eps-sweep", ["tiny-vit", "tiny-vit-standard"], attack="pgd(steps=20)", limit=200, out="runs")`.
    With `out`, a second call resumes where the first one stopped.
    """
    several = tuple(models) if isinstance(models, list | tuple) else (models,)
    own = {key: value for key, value in given.items() if key not in SETUP}
    fields = {key: value for key, value in given.items() if key in SETUP}
    kind, setup = ANALYSES[name], setup or Setup()
    if kind.data is not None and fields.get("data", setup.data) == Setup().data:
        fields["data"] = kind.data
    setup = replace(setup, **fields)
    if isinstance(setup.data, str) and not setup.data.endswith("]") and setup.limit is None:
        setup = replace(setup, limit=kind.images)
    for key in own:
        if key not in kind.parameters():
            raise UsageError(did_you_mean(f"parameter of {name}", key, (*kind.parameters(), *SETUP)))
    if kind.from_store:
        chosen = () if models == DEFAULT_MODEL else names_of(several)
        root = Path(setup.out) if setup.out is not None else Path("runs")
        data = str(setup.data) if setup.limit is None else f"{setup.data}[limit:{setup.limit}]"
        return ask_store(name, chosen, root, data, threat, {**(parameters or {}), **own})
    analysis = bound(name, kind, {**(parameters or {}), **own})
    if isinstance(setup.data, str):
        analysis.data_opened(setup.data, setup.data_folder)
    check_models_count(name, kind, names_of(several))
    budgets = budget_of(name, kind, threat)
    options = setup.options or FileOptions()
    texts = [model for model in several if isinstance(model, str)]
    by_model = {texts[0]: options} if len(several) == 1 and texts else options_by_model(texts, options)
    listener = listener or (NotebookProgress() if in_notebook() else EvaluationListener())
    with numerics(setup.cores), setup.store() as root:
        run = AnalysisRun(name, analysis, several, replace(setup, out=root), budgets, by_model, listener)
        return analysis.run(run)
