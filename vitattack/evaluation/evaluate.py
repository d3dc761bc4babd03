"""`evaluate`: every attack under every budget on one model and the same images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import torch
from torch import nn

from vitattack.attacks import attack_text
from vitattack.attacks.aas.controls import read_scales
from vitattack.attacks.attack_text import NamedAttack
from vitattack.attacks.base import Attack
from vitattack.attacks.black_box.transfer import source_digest
from vitattack.attacks.perceptual.distances import lpips_missing
from vitattack.attacks.price import PriceQuery, of_one_image
from vitattack.attacks.settings import resolved_settings
from vitattack.core.errors import UsageError
from vitattack.core.file_hashes import marks_of
from vitattack.core.notebook import in_notebook
from vitattack.core.runtime import numerics, resolve_device, several_gpus, usable_cores
from vitattack.data import DataSet
from vitattack.evaluation.attachments import Occasion, with_attachments
from vitattack.evaluation.batch_runner import rows_at_once
from vitattack.evaluation.callable_attack import Crafter, attack_source
from vitattack.evaluation.files_read import files_named
from vitattack.evaluation.gpu_shards import over_gpus
from vitattack.evaluation.listener import EvaluationListener, WithoutShards
from vitattack.evaluation.notebook_progress import NotebookProgress
from vitattack.evaluation.prepare import Prepared, prepare
from vitattack.evaluation.reuse import confirm
from vitattack.evaluation.run_job import run, stored
from vitattack.evaluation.setup import DEFAULT_ATTACK, DEFAULT_MODEL, DEFAULT_THREAT, Setup, SetupFields
from vitattack.evaluation.workers import Workers, alone, check_jobs, decided
from vitattack.records.job import Job
from vitattack.records.next_command import given_as
from vitattack.records.result import Evaluation, Result
from vitattack.records.saved_examples import has_all_examples, write_images
from vitattack.text.syntax import AttackSource, AttackSyntax, Call
from vitattack.threats.base import Threat, parse_threats


@torch.inference_mode(False)
def evaluate(
    model: nn.Module | str = DEFAULT_MODEL,
    attacks: AttackSource | Crafter | Sequence[AttackSource | Crafter] = DEFAULT_ATTACK,
    *,
    threat: str | Threat | Sequence[str | Threat] = DEFAULT_THREAT,
    scales: str | Path | None = None,
    perceptual: bool = False,
    listener: EvaluationListener | None = None,
    setup: Setup | None = None,
    **fields: Unpack[SetupFields],
) -> Evaluation:
    """Robust accuracy of a model: clean and per-attack numbers with intervals, cost, doubts and per-sample records.

    `model` is any module from [0,1] pixels to logits, or a text such as "tiny-vit"; `attacks` are texts, or objects of
    `vitattack.attack`. Images and labels come by name, as `data=(x, y)` of tensors or NumPy arrays, or from a torch Dataset or
    DataLoader, which is read into memory as far as `limit`. `threat` may be several budgets, as in
    "linf:1/255,2/255,4/255", a union such as "linf:8/255+l2:0.5", or a list of texts: every attack runs under each. The fields
    of `Setup` may be given as keywords.

    With `out` every batch is stored, and a second call resumes where the first one stopped; without it nothing is kept on
    disk. With `save_adv` the candidates are stored as well, with `save_png` also as images. With `perceptual` the
    records also hold l2, linf, SSIM and, if its weights are available, LPIPS of every candidate. In a notebook
    bars show the progress, unless a `listener` is given. A result of `auto` carries its certificate, unless `certificate` is
    False, and with `check` the outcome of `vitattack.check`. Callers may sit in `no_grad` or `inference_mode`.

    Models by name are attacked by copies of this process where the machine has the cores; `jobs` says how many, and records do
    not depend on it. A module is attacked in this process unless `jobs` is given: hooks in a copy would tell nobody.
    """
    setup = replace(setup or Setup(), **fields)
    listener = listener or (NotebookProgress() if in_notebook() else EvaluationListener())
    budgets = as_budgets(threat)
    planned = plan_jobs(as_sources(attacks, budgets), budgets, setup, scales, perceptual=perceptual)
    learning = [plan.attack for plan in planned if plan.attack.traits.learns]
    if setup.calibration is not None and not learning:
        raise UsageError("calibration images are for attacks that learn from some, such as aas: drop them")
    if setup.check and not any(plan.attack.traits.certified for plan in planned):
        raise UsageError("the checks are of auto without a budget: name auto among the attacks, or drop the check")
    device = resolve_device(setup.device, model)
    if isinstance(model, str) and (gpus := _gpus_to_share(setup)):
        about = {"model": model, "attacks": attacks, "threat": threat, "scales": scales, "perceptual": perceptual}
        return _on_gpus(gpus, about, setup, listener)
    check_jobs(setup.jobs or 1, device)
    with numerics(setup.cores), setup.store() as root, given_as(setup.given(model)):
        listed = setup.out is not None and not any(plan.attack.traits.sources for plan in planned)
        named = marks_of(files_named(model)) if listed and isinstance(model, str) else None
        prepared = prepare(model, setup, device)
        required = any(attack.traits.calibration == "required" for attack in learning)
        calibration = prepared.calibration(required=required) if learning else None
        inputs = None
        if named is not None and isinstance(model, str):
            files = prepared.files(model, calibration, perceptual=perceptual)
            inputs = None if files is None else {**marks_of(files), **named}  # the first mark of a file counts
        results = []
        for number, plan in enumerate(planned):
            result = _finished(plan, prepared, calibration, root, Turn(listener, number, len(planned)))
            if result is not None:
                results.append((result if setup.out is not None else result.unstored()).packed())
        syntax = {plan.syntax.text: plan.syntax for plan in planned}
        return Evaluation(tuple(results), inputs, syntax, unfinished=len(planned) - len(results))


def _on_gpus(gpus: Sequence[str], arguments: dict[str, Any], setup: Setup, listener: EvaluationListener) -> Evaluation:
    """An evaluation with a shard of the images for each GPU."""
    told = WithoutShards(listener)
    with setup.store() as root:
        found = over_gpus(
            gpus,
            replace(setup, out=root),
            lambda own: evaluate(**arguments, listener=told, setup=own),
            f"{__name__}:{evaluate_shard.__name__}",
            arguments,
        )
        kept = [each if setup.out is not None else each.unstored() for each in found.results]
        return replace(found, results=tuple(kept))


def evaluate_shard(**arguments: Any) -> bool:
    """Evaluate a part of the images in a process that was started for it; whether that finished the run."""
    return evaluate(**arguments).finished


def _gpus_to_share(setup: Setup) -> list[str]:
    """The GPUs that share a run, if there are several."""
    if setup.shard != (0, 1) or setup.jobs == 1:
        return []
    gpus = several_gpus(setup.device)
    if gpus and setup.jobs is not None and setup.jobs > len(gpus):
        raise UsageError(f"{setup.jobs} jobs are too many for {len(gpus)} GPUs: use --jobs {len(gpus)}")
    return gpus[: setup.jobs]


class PlannedJob(NamedTuple):
    """An attack against one budget, with its canonical text."""

    threat: Threat
    syntax: AttackSyntax
    attack: Attack


class Turn(NamedTuple):
    """The place of a job among all of an evaluation, and the listener that hears of it."""

    listener: EvaluationListener
    number: int
    of: int


def _workers(plan: PlannedJob, prepared: Prepared, job: Job, root: Path) -> Workers:
    """The workers that are asked for, else one, or for models by name those that suit the machine."""
    setup = prepared.setup
    if setup.jobs is not None:
        return Workers(setup.jobs, setup.threads or max(1, usable_cores() // setup.jobs))
    if not prepared.by_name or setup.shard != (0, 1):
        return alone(setup.threads)
    victim = prepared.victim
    price = of_one_image(plan.attack, PriceQuery(victim.num_classes, plan.threat))
    at_once = rows_at_once(plan.attack, job)
    return decided(root, job, victim, price, len(prepared.images), at_once, setup.threads)


def _finished(
    plan: PlannedJob, prepared: Prepared, calibration: DataSet | None, root: Path, turn: Turn
) -> Result | None:
    """The result of one job, from the store or run now; None while other shards are unfinished."""
    setup, listener = prepared.setup, turn.listener
    checkable = plan.attack.traits.certified
    attachments = {"certificate": checkable and setup.certificate, "check": checkable and setup.check}
    taught_by = f"{calibration.text} {calibration.digest()}" if calibration and plan.attack.traits.learns else ""
    asked = tuple(map(source_digest, plan.attack.traits.sources))
    job = prepared.job(plan.syntax.text, str(plan.threat), taught_by, asked, resolved_settings(plan.attack))
    workers = _workers(plan, prepared, job, root)
    job = replace(job, threads=workers.threads)
    listener.keyed(job, root)
    fresh = setup.fresh or bool(prepared.fingerprint.unknown)  # a model without a digest is never found again
    result = None if fresh else stored(root, job, prepared.images, plan.attack)
    from_store = result is not None
    if from_store:
        confirm(root / job.folder, prepared.victim, prepared.images)
    if result is None or (setup.keeps_examples and not has_all_examples(root / job.folder)):
        with numerics(workers.threads):
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
                save_adv=setup.keeps_examples,
                finished=result,
                workers=workers,
            )
    if result is not None:
        wanted = [name for name, asked in attachments.items() if asked]
        result = with_attachments(Occasion(prepared, plan.threat, result), wanted)
    if result is not None and setup.save_png:
        write_images(root / job.folder)
    listener.done(result, from_store)
    return result


def as_sources(
    attacks: AttackSource | Crafter | Sequence[AttackSource | Crafter], budgets: tuple[Threat, ...]
) -> list[AttackSyntax]:
    """Parse every text once."""
    several = attacks if isinstance(attacks, list | tuple) else [attacks]
    return [attack_source(each, budgets) for each in several]


def plan_jobs(
    attacks: Sequence[AttackSyntax],
    budgets: Sequence[Threat],
    setup: Setup,
    scales: str | Path | None = None,
    *,
    perceptual: bool = False,
) -> list[PlannedJob]:
    """Build every attack against every budget, with given attention scales and perceptual measures if asked for."""
    if scales is not None:
        attacks = _with_scales(attacks, Path(scales))
    if not attacks:
        raise UsageError("no attack is named: write auto, pgd or worst(pgd, gama)")
    if perceptual:
        attacks = [with_perceptual(syntax) for syntax in attacks]
    planned = []
    for ball in budgets:
        named = [attack_text.parse(syntax, ball) for syntax in attacks]
        texts = [each.text for each in named]
        if len(set(texts)) < len(texts):
            raise UsageError(f"an attack is named twice: {', '.join(texts)}")
        planned += [PlannedJob(ball, each.syntax, _in_precision(each, setup)) for each in named]
    return planned


def _with_scales(attacks: Sequence[AttackSyntax], path: Path) -> list[AttackSyntax]:
    """The attacks with the scales of a file in place of every search for some; those that become equal, once."""
    named = [attack_text.example_attack(syntax) for syntax in attacks]
    if not any(each.attack.traits.attention for each in named):
        raise UsageError("scales are for attacks through attention: add one such as aas+pgd")
    scales = read_scales(path)
    scaled = [attack_text.example_attack(attack_text.with_scales(each.syntax, scales)).syntax for each in named]
    return list({syntax.text: syntax for syntax in scaled}.values())


def with_perceptual(attack: AttackSyntax) -> AttackSyntax:
    """An attack whose candidates are also measured as people see them, by LPIPS too if this machine has its weights."""
    if isinstance(attack.root, Call) and attack.root.name == "perceptual":
        return attack
    return AttackSyntax(attack.text, Call("perceptual", (attack.root,), (("lpips", lpips_missing() is None),)))


def _in_precision(named: NamedAttack, setup: Setup) -> Attack:
    """The attack with its search in the precision of the setup."""
    if setup.precision == "fp32":
        return named.attack
    halved = named.attack.in_half()
    if halved is None:
        raise UsageError(
            f"{setup.precision} is for auto, '{named.text}' searches in fp32: name auto, or drop the precision"
        )
    return halved


def as_budgets(threat: str | Threat | Sequence[str | Threat]) -> tuple[Threat, ...]:
    """The threats of a text, of one threat or of several of either."""
    given = [threat] if isinstance(threat, str) or not isinstance(threat, Sequence) else threat
    budgets = [budget for each in given for budget in (parse_threats(each) if isinstance(each, str) else [each])]
    if not budgets:
        raise UsageError("no threat is named: write linf:8/255 or l2:0.5")
    if len(set(map(str, budgets))) < len(budgets):
        raise UsageError(f"a budget is named twice in {', '.join(map(str, budgets))}: name each once")
    return tuple(budgets)
