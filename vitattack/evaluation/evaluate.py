"""`evaluate`: every attack under every budget on one model and the same images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, Unpack

from torch import nn

from vitattack.attacks import attack_text
from vitattack.attacks.aas.controls import read_scales
from vitattack.attacks.base import Attack
from vitattack.attacks.black_box.transfer import source_digest
from vitattack.attacks.perceptual.distances import lpips_missing
from vitattack.core.errors import UsageError
from vitattack.core.runtime import numerics, resolve_device
from vitattack.data import DataSet
from vitattack.evaluation.listener import EvaluationListener
from vitattack.evaluation.prepare import Prepared, prepare
from vitattack.evaluation.reuse import confirm
from vitattack.evaluation.run_job import run, stored
from vitattack.evaluation.setup import DEFAULT_ATTACK, DEFAULT_MODEL, DEFAULT_THREAT, Setup, SetupFields
from vitattack.records.result import Evaluation, Result
from vitattack.threats.base import Threat, parse_threats


def evaluate(
    model: nn.Module | str = DEFAULT_MODEL,
    attacks: str | Sequence[str] = DEFAULT_ATTACK,
    *,
    threat: str | Threat | Sequence[Threat] = DEFAULT_THREAT,
    scales: str | Path | None = None,
    perceptual: bool = False,
    listener: EvaluationListener | None = None,
    setup: Setup | None = None,
    **fields: Unpack[SetupFields],
) -> Evaluation:
    """Robust accuracy of a model: clean and per-attack numbers with intervals, cost, doubts and per-sample records.

    `model` is any module from [0,1] pixels to logits, or a text such as "tiny-vit". The fields of `Setup` may be given
    as keywords. With `out` every batch is stored and a second call goes on where the first one stopped; without it
    nothing is kept on disk. A threat may be several budgets, "linf:1/255,2/255,4/255": every attack is run under each.
    With `perceptual` the records also hold l2, linf, SSIM and, where its weights are at hand, LPIPS of every candidate.
    """
    setup = replace(setup or Setup(), **fields)
    listener = listener or EvaluationListener()
    budgets = parse_threats(threat) if isinstance(threat, str) else as_tuple(threat)
    texts = attack_texts([attacks] if isinstance(attacks, str) else attacks, scales, perceptual=perceptual)
    planned = [Planned(ball, text, _built(text, ball, setup)) for ball in budgets for text in texts]
    learning = [plan.attack for plan in planned if plan.attack.traits.learns]
    if setup.calibration is not None and not learning:
        raise UsageError("calibration images are for attacks that learn from some, such as aas: drop them")
    device = resolve_device(setup.device, model)
    with numerics(setup.cores), setup.store() as root:
        prepared = prepare(model, setup, device)
        required = any(attack.traits.calibration == "required" for attack in learning)
        calibration = prepared.calibration(required=required) if learning else None
        results = []
        for number, plan in enumerate(planned):
            turn = Turn(listener, number, len(planned))
            result = _finished(plan, prepared, calibration, root, turn)
            if result is not None:
                results.append(result if setup.out is not None else replace(result, folder=None))
        inputs = None
        if setup.out is not None and isinstance(model, str) and not any(plan.attack.traits.sources for plan in planned):
            inputs = prepared.files(model, calibration, perceptual=perceptual)
        return Evaluation(tuple(results), inputs)


class Planned(NamedTuple):
    """An attack by its canonical text, built against one budget."""

    threat: Threat
    text: str
    attack: Attack


class Turn(NamedTuple):
    """Whom to tell of a job, and which of how many it is."""

    listener: EvaluationListener
    number: int
    of: int


def _finished(plan: Planned, prepared: Prepared, calibration: DataSet | None, root: Path, turn: Turn) -> Result | None:
    """The result of one job, from the store or run now; None while other shards are unfinished."""
    setup, listener = prepared.setup, turn.listener
    taught_by = f"{calibration.text} {calibration.digest()}" if calibration and plan.attack.traits.learns else ""
    asked = tuple(map(source_digest, plan.attack.traits.sources))
    job = prepared.job(plan.text, str(plan.threat), taught_by, asked)
    listener.keyed(job, root)
    fresh = setup.fresh or bool(prepared.fingerprint.unknown)  # a model without a digest is never found again
    result = None if fresh else stored(root, job, prepared.images, plan.attack)
    from_store = result is not None
    if from_store:
        confirm(root / job.folder, prepared.victim, prepared.images)
    if result is None:
        result = run(
            prepared.victim,
            plan.attack,
            job,
            plan.threat,
            prepared.images,
            lambda: prepared.read(calibration),
            root,
            shard=setup.shard,
            fresh=fresh,
            watch=listener.job(job, turn.number, turn.of),
            again=partial(listener.again, job),
            expected_clean=prepared.expected_clean,
            model_record=prepared.model_record,
        )
    listener.done(result, from_store)
    return result


def attack_texts(attacks: Sequence[str], scales: str | Path | None = None, *, perceptual: bool = False) -> list[str]:
    """The canonical texts of attacks, with given attention scales and measured appearance where asked for."""
    texts = [attack_text.canonical(text) for text in attacks]
    if scales is not None:
        if not any(attack_text.example(text).attack.traits.attention for text in texts):
            raise UsageError("scales are for attacks through attention: add one such as aas+pgd")
        texts = list(dict.fromkeys(attack_text.with_scales(text, read_scales(Path(scales))) for text in texts))
    if not texts:
        raise UsageError("no attack is named: write auto, pgd or worst(pgd, gama)")
    if len(set(texts)) < len(texts):
        raise UsageError(f"an attack is named twice: {', '.join(texts)}")
    return with_perceptual(texts) if perceptual else texts


def with_perceptual(texts: Sequence[str]) -> list[str]:
    """Attacks that also measure what they made, by LPIPS too where this machine has its weights."""
    more = f"lpips={lpips_missing() is None}"
    return [t if t.startswith("perceptual(") else attack_text.canonical(f"perceptual({t}, {more})") for t in texts]


def _built(text: str, threat: Threat, setup: Setup) -> Attack:
    """The attack of a text against a threat, its search in the precision of the setup."""
    attack = attack_text.build(text, threat)
    if setup.precision == "fp32":
        return attack
    halved = attack.in_half()
    if halved is None:
        raise UsageError(f"{setup.precision} is for auto, '{text}' searches in fp32: name auto, or drop the precision")
    return halved


def as_tuple(threat: Threat | Sequence[Threat]) -> tuple[Threat, ...]:
    return tuple(threat) if isinstance(threat, Sequence) else (threat,)
