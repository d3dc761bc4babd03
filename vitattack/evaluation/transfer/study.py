"""A study of transfer: candidates crafted on each source and judged on every target, as a matrix of results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import torch
from torch import nn

from vitattack.attacks import attack_text
from vitattack.attacks.black_box.transfer import boundary_doubts
from vitattack.attacks.settings import resolved_settings
from vitattack.core.errors import UsageError
from vitattack.core.runtime import numerics, resolve_device
from vitattack.evaluation.listener import EvaluationListener
from vitattack.evaluation.prepare import calibration_images, preprocessing
from vitattack.evaluation.setup import DEFAULT_THREAT, Setup, SetupFields
from vitattack.evaluation.transfer.command_words import DEFAULT_ATTACK
from vitattack.evaluation.transfer.source_run import SourceRun
from vitattack.evaluation.transfer.success_matrix import TransferCell, TransferMatrix
from vitattack.evaluation.transfer.victims import (
    Model,
    assemble,
    check_distinct,
    key_of,
    size_doubts,
)
from vitattack.records.result import Result
from vitattack.text.syntax import AttackSource, excerpt
from vitattack.threats.base import Threat, parse_threats
from vitattack.threats.lp import LpBall


@torch.inference_mode(False)
def transfer(
    models: Sequence[Model],
    to: Sequence[Model] = (),
    attack: AttackSource = DEFAULT_ATTACK,
    *,
    threat: str | Threat = DEFAULT_THREAT,
    listener: EvaluationListener | None = None,
    setup: Setup | None = None,
    **fields: Unpack[SetupFields],
) -> TransferMatrix:
    """Craft on each of `models` with the true labels, and judge the candidates on each of `to` (default: the same models).

    All images are attacked on the source, even those it misclassifies. Accuracy is the target's over all images; a
    clean error stays an error. With `out` a second call resumes where the first one stopped. The fields of `Setup` may be
    given as keywords.
    """
    setup = replace(setup or Setup(), **fields)
    if setup.shard != (0, 1) or setup.precision != "fp32":
        raise UsageError("transfer runs whole and in fp32: drop the shard and the precision")
    if setup.jobs not in (None, 1):
        raise UsageError("transfer attacks in one process: drop the jobs")
    budgets = parse_threats(threat) if isinstance(threat, str) else (threat,)
    if len(budgets) > 1:
        raise UsageError("candidates are carried under one budget at a time: give one --threat")
    ball = budgets[0]
    if not isinstance(ball, LpBall):
        raise UsageError(f"transfer carries changes of pixels, not {ball.kind} ones: use --threat linf:1/255 or l2:0.5")
    named = attack_text.parse(attack, ball)
    text, built = named.text, named.attack
    if built.traits.sources:
        raise UsageError(f"{excerpt(text)} names its source itself: give this command the attack alone, such as pgd")
    if setup.calibration is not None and not built.traits.learns:
        raise UsageError("calibration images are for attacks that learn from some, such as aas: drop them")
    check_distinct(models, to)

    with numerics(setup.cores), setup.store() as root:
        place = resolve_device(setup.device, next((m for m in [*models, *to] if isinstance(m, nn.Module)), None))
        everyone, base = assemble([*models, *to], place, setup)
        rows = [everyone[key_of(model)] for model in models]
        columns = [everyone[key_of(model)] for model in to] or rows
        other = None
        if built.traits.learns:
            how = preprocessing(setup.transform)
            other = calibration_images(setup.calibration, base, setup.data_folder, how)
        taught_by = f"{other.text} {other.digest()}" if other else ""
        cells: list[TransferCell] = []
        white_box: dict[str, Result] = {}
        for number, source in enumerate(rows):
            job = setup.job(
                model=source.name,
                attack=text,
                threat=str(ball),
                data=source.data.text,
                weights=source.weights,
                pixels=source.pixels,
                calibration=taught_by,
                device=place.type,
                settings=resolved_settings(built),
            )
            row = SourceRun(source, columns, job, built, ball, other, base, root, place)
            fresh = setup.fresh or not all(model.lasting for model in (source, *columns))
            found = row.run(listener or EvaluationListener(), number, len(rows), fresh=fresh)
            if setup.out is None:
                found = {name: replace(result, folder=None) for name, result in found.items()}
            white_box[source.name] = found[source.name]
            cells += [TransferCell(source.name, t.name, found[t.name], source.size != t.size) for t in columns]
        return TransferMatrix(
            sources=tuple(source.name for source in rows),
            targets=tuple(target.name for target in columns),
            cells=tuple(cells),
            white_box=white_box,
            data=base.text,
            notes=(*boundary_doubts(built), *size_doubts(list(everyone.values()), ball)),
            provenance={
                **white_box[rows[0].name].provenance,
                "weights_sha256": {model.name: model.weights for model in everyone.values()},
                "data_sha256": base.digest(),
            },
            folder=Path(setup.out) if setup.out is not None else None,
        )
