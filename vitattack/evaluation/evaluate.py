"""`evaluate` and `attack`: the Python face. The command line is a thin caller of this module."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from vitattack import data as data_sets
from vitattack.attacks import attack_text
from vitattack.attacks.aas.controls import read_scales
from vitattack.attacks.aas.report import looks_through_attention
from vitattack.attacks.base import Attack, Crafted, learns, needs_calibration, sources
from vitattack.attacks.black_box.transfer import source_digest
from vitattack.attacks.perceptual.distances import lpips_missing
from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.core.rng import SampleRng
from vitattack.core.runtime import numerics, resolve_device, usable_cores
from vitattack.data import DataSet
from vitattack.data.transform import Preprocessing
from vitattack.evaluation.crafting import read_batch
from vitattack.evaluation.run_job import run, stored
from vitattack.models.victim import Victim, check_pixels, digest, wrap
from vitattack.models.zoo import load as zoo
from vitattack.models.zoo.entries import Entry
from vitattack.records import stats
from vitattack.records.job import Job
from vitattack.records.record import Watch
from vitattack.records.result import Evaluation, Result
from vitattack.threats.base import Threat, parse_threat, parse_threats

DEFAULT_MODEL, DEFAULT_DATA, DEFAULT_THREAT, DEFAULT_ATTACK = (
    "tiny-vit",
    "cifar10-demo",
    "linf:8/255",
    "auto",
)

Precision = Literal["fp32", "bf16-search"]


class Reporter:
    """What an evaluation tells while it runs; the default tells nothing."""

    def keyed(self, job: Job, root: Path) -> None:
        """The key of a job is known, and the store in `root` is about to be asked for it."""

    def job(self, job: Job, number: int, count: int) -> Watch:
        """A job is about to run; what comes back hears of its records."""
        return lambda records, total: None

    def again(self, job: Job, name: str) -> Watch:
        """A pass over survivors of the job is about to run: its "probe", or the "full" AutoAttack."""
        return lambda records, total: None

    def done(self, result: Result | None, from_store: bool) -> None:
        """A job has ended; None where other shards have to finish first."""


def evaluate(
    model: nn.Module | str = DEFAULT_MODEL,
    attacks: str | Sequence[str] = DEFAULT_ATTACK,
    *,
    threat: str | Threat | Sequence[Threat] = DEFAULT_THREAT,
    data: str | tuple[Tensor, Tensor] | DataSet = DEFAULT_DATA,
    limit: int | None = None,
    calibration: str | tuple[Tensor, Tensor] | None = None,
    seed: int = 0,
    batch_size: int = 64,
    threads: int | None = None,
    precision: Precision = "fp32",
    device: str = "auto",
    out: str | Path | None = None,
    fresh: bool = False,
    shard: tuple[int, int] = (0, 1),
    scales: str | Path | None = None,
    options: zoo.FileOptions = zoo.FileOptions(),
    data_dir: str | Path | None = None,
    transform: str | None = None,
    perceptual: bool = False,
    reporter: Reporter | None = None,
) -> Evaluation:
    """Robust accuracy of a model: clean and per-attack numbers with intervals, cost, doubts and per-sample records.

    `model` is any module from [0,1] pixels to logits, or a text such as "tiny-vit". With `out` every batch is stored
    and a second call goes on where the first one stopped; without it nothing is kept on disk. A threat may be several
    budgets, "linf:1/255,2/255,4/255": every attack is run under each. With `perceptual` the records also hold l2, linf,
    SSIM and, where its weights are at hand, LPIPS of every candidate.
    """
    reporter = reporter or Reporter()
    budgets = parse_threats(threat) if isinstance(threat, str) else as_tuple(threat)
    texts = [attack_text.canonical(text) for text in ([attacks] if isinstance(attacks, str) else attacks)]
    if scales is not None:
        if not any(map(looks_through_attention, texts)):
            raise UsageError("scales are for attacks through attention: add one such as aas+pgd")
        texts = list(dict.fromkeys(attack_text.with_scales(text, read_scales(Path(scales))) for text in texts))
    if not texts:
        raise UsageError("no attack is named: write auto, pgd or worst(pgd, gama)")
    if len(set(texts)) < len(texts):
        raise UsageError(f"an attack is named twice: {', '.join(texts)}")
    if perceptual:
        texts = with_perceptual(texts)
    threads = usable_cores() if threads is None else threads
    check_numbers(seed, batch_size, threads, shard)
    jobs = [(ball, text, attack_text.build(text, ball)) for ball in budgets for text in texts]
    if precision != "fp32":
        jobs = [(ball, text, searching(attack, text, precision)) for ball, text, attack in jobs]
    learning = any(learns(attack) for _, _, attack in jobs)
    place = resolve_device(device, model)
    folder = Path(data_dir) if data_dir is not None else None
    check_transform(data, transform)

    with numerics(threads), open_store(out) as root:
        if isinstance(model, str):
            loaded = zoo.load(model, place, options)
            samples = open_data(data, limit, folder, wish(transform, loaded.victim))
        else:
            samples = open_data(data, limit, folder, wish(transform))
            home = resolve_device("auto", model)
            if place.type != home.type:
                raise UsageError(f"the model is on {home}: call .to('{place}') first, or drop the device")
            first, _ = samples.read(samples.rows[:1])
            loaded = zoo.Loaded(wrap(model, first.to(home)).to(home), None, {"source": "module"})
        victim = data_sets.asked(loaded.victim, samples.classes)
        if samples.num_classes is not None and samples.num_classes != victim.num_classes:
            raise UsageError(
                f"'{victim.name}' has {victim.num_classes} classes, '{samples.text}' has {samples.num_classes}: "
                "choose data the model was trained for"
            )
        if calibration is not None and not learning:
            raise UsageError("calibration images are for attacks that learn from some, such as aas: drop them")
        other = None
        if learning:
            required = any(needs_calibration(attack) for _, _, attack in jobs)
            other = calibration_images(calibration, samples, folder, wish(transform, victim), required=required)
        weights, pixels = digest(victim), samples.digest()
        taught_by = f"{other.text} {other.digest()}" if other else ""
        results = []
        for number, (ball, text, attack) in enumerate(jobs):
            job = Job(
                model=victim.name,
                attack=text,
                threat=str(ball),
                data=samples.text,
                weights=" ".join([weights, *map(source_digest, sources(attack))]),
                pixels=pixels,
                calibration=taught_by if learns(attack) else "",
                seed=seed,
                batch_size=batch_size,
                precision=precision,
                threads=threads,
                device=place.type,
            )
            reporter.keyed(job, root)
            result = None if fresh else stored(root, job, samples, attack)
            from_store = result is not None
            if result is None:
                result = run(
                    victim,
                    attack,
                    job,
                    ball,
                    samples,
                    lambda: (
                        read_batch(other, other.rows, victim, place)[:2] if other else (torch.empty(0), torch.empty(0))
                    ),
                    root,
                    shard=shard,
                    fresh=fresh,
                    watch=reporter.job(job, number, len(jobs)),
                    again=partial(reporter.again, job),
                    expected_clean=expected_clean(loaded, samples),
                    model_record=loaded.record,
                )
            reporter.done(result, from_store)
            if result is not None:
                results.append(result if out is not None else replace(result, folder=None))
        return Evaluation(tuple(results))


def with_perceptual(texts: Sequence[str]) -> list[str]:
    """Attacks that also measure what they made, by LPIPS too where this machine has its weights."""
    more = f"lpips={lpips_missing() is None}"
    return [t if t.startswith("perceptual(") else attack_text.canonical(f"perceptual({t}, {more})") for t in texts]


def searching(attack: Attack, text: str, precision: Precision) -> Attack:
    """The attack with its search in another precision than its verdicts."""
    if precision not in get_args(Precision):
        raise UsageError(did_you_mean("precision", precision, get_args(Precision)))
    halved = getattr(attack, "in_half", None)
    if halved is None:
        raise UsageError(f"{precision} is for auto, '{text}' searches in fp32: name auto, or drop the precision")
    found: Attack = halved()
    return found


def as_tuple(threat: Threat | Sequence[Threat]) -> tuple[Threat, ...]:
    return tuple(threat) if isinstance(threat, Sequence) else (threat,)


def check_numbers(seed: int, batch_size: int, threads: int, shard: tuple[int, int]) -> None:
    if batch_size < 1:
        raise UsageError(f"batch size {batch_size} holds no image: use at least 1")
    if not 1 <= threads <= 1024:
        raise UsageError(f"{threads} threads are too few or too many: use 1 to 1024")
    if seed < 0:
        raise UsageError(f"seed {seed} is negative: use 0 or more")
    if not 0 <= shard[0] < shard[1]:
        raise UsageError(f"shard {shard[0]}/{shard[1]} does not exist: write 0/{max(shard[1], 1)} for the first")


@contextmanager
def open_store(out: str | Path | None) -> Iterator[Path]:
    if out is not None:
        yield Path(out)
        return
    with tempfile.TemporaryDirectory(prefix="vitattack-") as folder:
        yield Path(folder)


def check_transform(data: object, transform: str | None) -> None:
    if transform is not None and not (isinstance(data, str) and data_sets.takes_transform(data)):
        raise UsageError(
            "a transform is for folder: data and sets of image files, others are used as they are: drop it"
        )


def wish(transform: str | None, victim: Victim | None = None) -> Preprocessing:
    """What is asked for, and what the model was made with."""
    return Preprocessing(transform, victim.transform, victim.input_size) if victim else Preprocessing(transform)


def open_data(
    data: str | tuple[Tensor, Tensor] | DataSet,
    limit: int | None,
    data_dir: Path | None,
    how: Preprocessing = Preprocessing(),
) -> DataSet:
    """The images; where no transform is asked for, that of the data set decides, then the model's own and its size."""
    if isinstance(data, str):
        return data_sets.load(
            data, limit=limit, data_dir=data_dir, transform=how.given, model_transform=how.model, px=how.px
        )
    samples = data if isinstance(data, DataSet) else data_sets.from_tensors(*data)
    if limit is None:
        return samples
    if limit < 1:
        raise UsageError(f"limit {limit} leaves no image: use at least 1")
    return replace(samples, rows=samples.rows[:limit])


def calibration_images(
    given: str | tuple[Tensor, Tensor] | None,
    samples: DataSet,
    data_dir: Path | None,
    how: Preprocessing = Preprocessing(),
    *,
    required: bool = True,
) -> DataSet | None:
    """Images to learn from, never the ones evaluated: given, embedded, or rows of the data set that are left over."""
    if given is None and samples.text.partition("[")[0] in ("cifar10", "cifar10-demo"):
        given = "cifar10-calib"
    if given is not None:
        chosen = open_data(given, None, data_dir, replace(how, given=None))
        if _overlap(chosen, samples):
            raise UsageError("calibration images are among the evaluated ones: give others, or rows of the rest")
        return chosen
    spare = samples.spare(128)
    if not spare and not required:
        return None
    if not spare:
        raise UsageError("this attack learns from other images than the evaluated ones: give --calibration DATA")
    return replace(samples, rows=spare, text=f"{samples.text} (rows left over)")


def _overlap(one: DataSet, two: DataSet) -> bool:
    """Whether an image is in both: by set and row, and for small images by their pixels."""
    if one.set_name == two.set_name:
        return bool(set(one.rows) & set(two.rows))
    if max(len(one), len(two)) > 12_000 or any(d.read(d.rows[:1])[0].numel() > 3 * 64 * 64 for d in (one, two)):
        return False  # too much to read for a check; other names are other images there
    seen: list[set[bytes]] = [
        {image.numpy().tobytes() for rows in d.cut(256) for image in d.read(rows)[0].cpu()} for d in (one, two)
    ]
    return bool(seen[0] & seen[1])


def expected_clean(loaded: zoo.Loaded, samples: DataSet) -> stats.Accuracy | None:
    """The clean accuracy the entry reports, where the data are the ones it reports it on."""
    entry = loaded.entry
    if entry is None or samples.set_name.removesuffix("-demo") != entry.dataset:
        return None
    return reported_clean(entry)


def reported_clean(entry: Entry) -> stats.Accuracy | None:
    """The clean accuracy an entry reports, as a share of its n images."""
    reported = next((r for r in entry.reported if r.metric == "clean"), None)
    if reported is None or reported.n is None:
        return None
    return stats.share(round(reported.value / 100 * reported.n), reported.n)


@dataclass(frozen=True)
class Crafter:
    """An attack and its threat, callable on any module: `attack("pgd", threat="linf:8/255")(module, x, y)`."""

    text: str
    threat: Threat
    attack: Attack

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int = 0) -> Crafted:
        """Candidates inside the budget, with the attack's own evidence. `evaluate` is what judges them."""
        victim = wrap(model, x)
        x, _ = check_pixels(x, "images")
        calibration = lambda: (x[:0], y[:0])  # noqa: E731
        rng = SampleRng(seed, tuple(range(len(x))))
        return self.attack.prepare(victim, calibration, rng=rng.child("prepare"))(victim, x, y, rng=rng)


def attack(text: str, *, threat: str | Threat = DEFAULT_THREAT) -> Crafter:
    """The attack a text names, ready to be called on a module, images in [0,1] and labels."""
    ball = parse_threat(threat) if isinstance(threat, str) else threat
    return Crafter(attack_text.canonical(text), ball, attack_text.build(text, ball))
