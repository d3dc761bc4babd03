"""Verification of adversarial examples made elsewhere: judged as those of our own attacks are, and stored as a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import torch
from torch import Tensor, nn

from vitattack.attacks.base import Crafted, blank_evidence
from vitattack.core.errors import UsageError
from vitattack.core.progress import in_stage
from vitattack.core.rng import SampleRng
from vitattack.core.runtime import numerics, resolve_device
from vitattack.core.words import printable, safe_file_name
from vitattack.data.formats.example_files import ExampleFile, read_examples
from vitattack.evaluation.batch_runner import Outcome, read_batch
from vitattack.evaluation.doubts import model_doubts
from vitattack.evaluation.example_keeper import ExampleKeeper
from vitattack.evaluation.judge import clean_answers, judge
from vitattack.evaluation.prepare import Prepared, prepare
from vitattack.evaluation.random_models import predictions, recognised, rows_to_compare
from vitattack.evaluation.reuse import keep_or_confirm
from vitattack.evaluation.run_job import finish
from vitattack.evaluation.setup import Setup, SetupFields
from vitattack.models.randomness import marked_random
from vitattack.models.victim import Victim, frozen
from vitattack.records.batch import BatchNotes
from vitattack.records.record import SampleRecord
from vitattack.records.result import Result
from vitattack.records.store import Sink
from vitattack.records.verification import (
    AFTER_ROUNDING,
    FAULTS,
    GIVEN,
    SIZE,
    SIZE_ROUNDED,
    Verification,
    check_mergeable,
    some_rows,
)
from vitattack.threats.base import Threat, parse_threat
from vitattack.threats.lp import LpBall

LONGEST_NAME = 40


@torch.inference_mode(False)
def verify(
    examples: str | Path,
    model: nn.Module | str,
    *,
    threat: str | Threat = "linf:8/255",
    against: Sequence[Result] = (),
    setup: Setup | None = None,
    **fields: Unpack[SetupFields],
) -> Verification:
    """Judge adversarial examples from a file or folder on a model, and merge them with stored results.

    An example counts if the plain model errs on it twice, inside [0,1] and inside the budget, by the labels of the data. Images
    without an example count as not fooled. With `out` the verdicts are stored as a run.
    """
    setup = replace(setup or Setup(), **fields)
    ball = parse_threat(threat) if isinstance(threat, str) else threat
    if not isinstance(ball, LpBall):
        raise UsageError(f"{ball} needs more than images to be checked: verify is for linf, l2, l1 and l0")
    if setup.shard != (0, 1):
        raise UsageError("a verification is not cut into shards: drop the shard")
    given = read_examples(Path(examples))
    device = resolve_device(setup.device, model)
    with numerics(setup.cores), setup.store() as root:
        prepared = prepare(model, setup, device)
        places = _places(given, prepared)
        result = _judged(given, places, ball, prepared, root)
        check_mergeable(against, result)
        return Verification(result if setup.out is not None else result.unstored(), given.name, tuple(against))


def _places(given: ExampleFile, prepared: Prepared) -> dict[int, int]:
    """Where in the file the example of each row of the data set is."""
    images, path = prepared.images, given.path
    if given.index is None:
        if len(given) != len(images):
            raise UsageError(
                f"'{path}' has {len(given)} examples and no index, '{images.text}' has {len(images)} images: "
                "add the rows as an array named index, or narrow the data"
            )
        index: Sequence[int] = images.rows
    else:
        index = given.index
    twice = [row for row, count in Counter(index).items() if count > 1]
    if twice:
        raise UsageError(f"'{path}' has several examples of image {twice[0]}: give one per image")
    strangers = set(index) - set(images.rows)
    if strangers:
        raise UsageError(
            f"'{path}' has an example of image {min(strangers)}, which is not among the {len(images)} of '{images.text}': "
            "give the data that the examples were made for"
        )
    if images.sizes is not None:
        raise UsageError(
            f"the images of '{images.text}' differ in size, and those of '{path}' are verified at one: "
            "narrow the data to one size"
        )
    height, width = prepared.victim.size
    if given.shape[1:] != (prepared.victim.channels, height, width):
        shape = " x ".join(map(str, given.shape[1:]))
        takes = f"{prepared.victim.channels} x {height} x {width}"
        raise UsageError(
            f"'{path}' has images of {shape}, '{prepared.victim.name}' takes {takes}: make them for this model"
        )
    return {row: at for at, row in enumerate(index)}


def _judged(given: ExampleFile, places: dict[int, int], ball: LpBall, prepared: Prepared, root: Path) -> Result:
    setup, victim, images = prepared.setup, prepared.victim, prepared.images
    name = safe_file_name(printable(given.name, LONGEST_NAME))
    job = prepared.job(f"examples({name})", str(ball), settings=given.digest)
    if given.weights not in (None, job.weights):  # what another model said of them is no claim about this one
        given = replace(given, prediction=None)
    fresh = setup.fresh or bool(prepared.fingerprint.unknown)
    with Sink(root, job, list(images.cut(setup.batch_size)), fresh=fresh) as sink:
        keep_or_confirm(sink.folder, victim, images, fresh=fresh)
        compared = read_batch(images, rows_to_compare(images), victim, prepared.device)[0]
        varies = recognised(victim, compared, job.seed, job.batch_size)
        keeper = ExampleKeeper(sink.folder, job, wanted=setup.keeps_examples)
        with marked_random(victim, varies.cause == "chance"):
            for rows in in_stage("judging examples", sink.todo):
                x, y, nudged = read_batch(images, rows, victim, prepared.device)
                doubts = model_doubts(victim, x[:8]) if rows == sink.batches[0] else []
                x_adv = torch.stack(
                    [given.row(places[row]).to(x) if row in places else x[at] for at, row in enumerate(rows)]
                )
                records = _records(
                    victim, ball, SampleRng(job.seed, tuple(rows)), x, y, x_adv, _said(given, places, rows)
                )
                outcomes = [Outcome(record, each) for record, each in zip(records, x_adv, strict=True)]
                keeper.keep(sink.numbered(records), x, outcomes)
                sink.write(records, BatchNotes(tuple(doubts), 0, nudged))
        return finish(
            sink,
            sink.records,
            job,
            prepared.device,
            None,
            _doubts(sink.records),
            None,
            prepared.model_record,
            images.protocol,
        )


def judge_again(run: Result, model: nn.Module | str, **fields: Unpack[SetupFields]) -> list[str]:
    """Judge the saved examples of a stored run on its model; what does not hold, a line each."""
    assert run.folder is not None
    job = run.job
    settings: SetupFields = {"data": job.data, "seed": job.seed, "batch_size": job.batch_size, "threads": job.threads}
    settings |= fields
    found = verify(run.folder, model, threat=run.job.threat, **settings)
    if found.result.job.weights != run.job.weights.partition(" ")[0]:
        return [f"'{run.job.model}' is another model now, its examples were not judged"]
    stored = {record.index for record in run.records if record.status == "fooled"}
    lost = sorted(stored - set(found.fooled))
    lines = [f"{len(lost)} of {len(stored)} successes do not hold: {some_rows(lost)}"] if lost else []
    faults = {name: rows for name, rows in found.faults.items() if set(rows) & stored}
    return [*lines, *(f"examples that {FAULTS[name]}: {some_rows(rows)}" for name, rows in faults.items())]


Said = tuple[Tensor, Tensor | None, Tensor | None]  # which rows have an example, and its label and prediction


def _said(given: ExampleFile, places: dict[int, int], rows: Sequence[int]) -> Said:
    def column(values: Sequence[int] | None) -> Tensor | None:
        return None if values is None else torch.tensor([values[places[row]] if row in places else -1 for row in rows])

    return torch.tensor([row in places for row in rows]), column(given.label), column(given.prediction)


def _records(
    victim: Victim, ball: LpBall, rng: SampleRng, x: Tensor, y: Tensor, x_adv: Tensor, said: Said
) -> list[SampleRecord]:
    """Records of a batch of examples, with everything that was checked as evidence."""
    given, labels, claimed = (each.to(x.device) if each is not None else None for each in said)
    assert given is not None
    flat = x_adv.flatten(1)
    finite = torch.isfinite(flat).all(1)
    in_box = ((flat >= 0) & (flat <= 1)).all(1)
    inside = ball.within(x, x_adv)
    rounded = (x_adv.nan_to_num(0.0).clamp(0, 1) * 255).round() / 255
    evidence = {
        GIVEN: given,
        "not_finite": given & ~finite,
        "out_of_range": given & finite & ~in_box,
        "out_of_budget": given & finite & ~inside,
        SIZE: ball.size(x, x_adv).float().nan_to_num(-1.0, -1.0, -1.0).to(x.device),
        SIZE_ROUNDED: ball.size(x, rounded).float().to(x.device),
    }
    evidence["other_label"] = given & (labels != y) if labels is not None else torch.zeros_like(given)
    evidence["other_prediction"] = torch.zeros_like(given)
    if claimed is not None:
        with frozen(victim), torch.no_grad():
            now = predictions(victim(x_adv.nan_to_num(0.0)))
        evidence["other_prediction"] = given & finite & (claimed >= 0) & (claimed != now)
        if victim.is_random:
            evidence["other_prediction"] = torch.zeros_like(given)
    clean = clean_answers(victim, x, y, rng)
    attacked = clean.attacked

    def judged(candidates: Tensor, told: dict[str, Tensor]) -> list[SampleRecord]:
        crafted = Crafted(candidates[attacked], blank_evidence(x[attacked]) | {n: v[attacked] for n, v in told.items()})
        none = torch.zeros(int(attacked.sum()), dtype=torch.long, device=x.device)
        aside = {name: values[~attacked] for name, values in told.items()}
        return judge(victim, ball, rng, x, y, clean, crafted, none, none, aside)

    at_8_bits = judged(rounded, {})
    evidence[AFTER_ROUNDING] = torch.tensor([record.status == "fooled" for record in at_8_bits], device=x.device)
    return judged(x_adv, evidence)


def _doubts(records: Sequence[SampleRecord]) -> list[str]:
    """Doubts about a number that given examples make."""
    given = sum(bool(record.evidence[GIVEN]) for record in records)
    found = ["the examples were made elsewhere: how hard their maker tried is not known"]
    if given < len(records):
        found.append(f"{len(records) - given} of {len(records)} images have no example and count as not fooled")
    lost = sum(r.status == "fooled" and not r.evidence[AFTER_ROUNDING] for r in records)
    if lost:
        found.append(f"{lost} examples fool the model only before they are rounded to 8 bits, as every image file is")
    return found
