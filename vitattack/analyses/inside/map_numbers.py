"""Numbers and pictures of maps, for clean images and for those of an attack on the model itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from vitattack.analyses.curves import at_places
from vitattack.analyses.figure import Bars, Curves, Figure, Pictures, Series
from vitattack.analyses.findings import Findings, Row
from vitattack.analyses.inside.map_measures import MEASURES, Mean, map_numbers, mean_of, sums_of
from vitattack.analyses.inside.masks import Masks
from vitattack.analyses.inside.probing import Probed
from vitattack.analyses.measures.heatmaps import enlarged
from vitattack.analyses.pictures import png, png_of_map
from vitattack.analyses.run import AnalysisRun
from vitattack.analyses.tables import side_by_side
from vitattack.attacks import attack_text
from vitattack.attacks.base import Attack
from vitattack.attacks.losses.base import is_correct
from vitattack.core.rng import SampleRng
from vitattack.core.table import Table
from vitattack.evaluation.crafting import call_attack
from vitattack.models.lost_gradients import lost_gradients_named

if TYPE_CHECKING:
    from vitattack.analyses.inside.questions import MapQuestion

CLEAN, ATTACKED, CHANGE = "clean", "attacked", "change"


class Maker(NamedTuple):
    """Makes maps of images: one for each label, the last of them drawn."""

    probed: Probed
    labels: tuple[str, ...]
    about: str
    make: Callable[[Tensor], list[Tensor]]
    diverging: bool = False  # whether pictures show a map as above and below its mean
    settings: Mapping[str, str] = MappingProxyType({})  # what tells the maps of one model apart


Means = Mapping[tuple[str, str, str], Mean]  # by label, condition and measure


def map_findings(
    analysis: MapQuestion, run: AnalysisRun, makers: Sequence[Maker], what: str, remarks: Sequence[str] = ()
) -> Findings:
    """Measure the maps of every model on the same images and put them side by side."""
    masks = None if analysis.masks is None else Masks(Path(analysis.masks))
    if masks is not None:
        run.reads(masks.path)
        for maker in makers:
            masks.check(maker.probed)
    found: list[tuple[Maker, Means]] = []
    pictures: list[list[dict[str, str]]] = []
    for maker in makers:
        means, drawn = _measured(analysis, run, maker, masks)
        found.append((maker, means))
        pictures.append(drawn)
    rows = [row for maker, means in found for row in _rows(maker, means)]
    said = [*remarks, *(remark for maker, means in found for remark in _remarks(maker, means, analysis.attack))]
    figures: list[Figure] = _figures(found, what)
    if analysis.pictures:
        figures.append(_picture_figure([maker.probed.name for maker in makers], pictures, what))
    return run.findings(rows, _tables(found, what, analysis), figures, said)


def _measured(
    analysis: MapQuestion, run: AnalysisRun, maker: Maker, masks: Masks | None
) -> tuple[Means, list[dict[str, str]]]:
    prepared = maker.probed.prepared
    victim = prepared.victim
    attack = _attack(analysis.attack, run, maker.probed) if analysis.attack != "none" else None
    shown = set(prepared.images.rows[: analysis.pictures])

    def measure(x: Tensor, y: Tensor, rows: tuple[int, ...]) -> dict[str, Any]:
        clean = _sized(maker, x)
        objects = None if masks is None else masks.of(rows)
        numbers = {
            f"{label}|{CLEAN}": map_numbers(maps, objects) for label, maps in zip(maker.labels, clean, strict=True)
        }
        attacked: Tensor | None = None
        if attack is not None:
            with torch.no_grad():
                right = is_correct(victim(x), y)
            at = right.nonzero().flatten()
            if len(at):
                rng = SampleRng(run.setup.seed, tuple(rows[i] for i in at.tolist()))
                adversarial = call_attack(attack, victim, x[at], y[at], rng)[0].x_adv
                maps_there = _sized(maker, adversarial)
                for label, before, after in zip(maker.labels, clean, maps_there, strict=True):
                    part = None if objects is None else objects[at.cpu()]
                    late, early = map_numbers(after, part), map_numbers(before[at.cpu()], part)
                    numbers[f"{label}|{ATTACKED}"] = {**late, "similarity": _similarity(before[at.cpu()], after)}
                    numbers[f"{label}|{CHANGE}"] = {name: late[name] - early[name] for name in late}
                attacked = torch.zeros_like(clean[-1])
                attacked[at.cpu()] = maps_there[-1]
        sums = {key: {name: sums_of(value) for name, value in each.items()} for key, each in numbers.items()}
        drawn = [
            _drawn(
                x[i], clean[-1][i], attacked[i] if attacked is not None and bool(right[i]) else None, maker.diverging
            )
            for i, row in enumerate(rows)
            if row in shown
        ]
        return {"sums": sums, "pictures": drawn}

    parts = run.over_batches(
        prepared,
        measure,
        masks=str(analysis.masks),
        mask_state=None if masks is None else masks.digest,
        **maker.settings,
    )
    totals: dict[tuple[str, str, str], list[float]] = {}
    for part in parts:
        for key, each in part["sums"].items():
            label, _, condition = key.partition("|")
            for name, sums in each.items():
                old = totals.get((label, condition, name), [0.0, 0.0, 0.0])
                totals[(label, condition, name)] = [a + b for a, b in zip(old, sums, strict=True)]
    means = {key: mean_of(*sums) for key, sums in totals.items() if sums[0] > 0}
    return means, [picture for part in parts for picture in part["pictures"]]


def _attack(text: str, run: AnalysisRun, probed: Probed) -> Attack:
    victim, x = probed.prepared.victim, probed.first
    attack = attack_text.parse(text, run.budget).attack
    with lost_gradients_named(victim, x):
        return attack.prepare(
            victim, lambda: (x[:0], torch.empty(0)), rng=SampleRng(run.setup.seed, ()).child("prepare")
        )


def _sized(maker: Maker, x: Tensor) -> list[Tensor]:
    """Maps at the size of the images, on the CPU."""
    size = (int(x.shape[-2]), int(x.shape[-1]))
    return [enlarged(maps.cpu().double(), size) for maps in maker.make(x)]


def _similarity(one: Tensor, two: Tensor) -> Tensor:
    """(B,) Pearson correlation of two maps; NaN where one is constant."""
    a, b = (maps.flatten(1) - maps.flatten(1).mean(1, keepdim=True) for maps in (one, two))
    found: Tensor = (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))
    return found


def _drawn(image: Tensor, clean: Tensor, attacked: Tensor | None, diverging: bool) -> dict[str, str]:
    return {
        "image": png(image),
        CLEAN: png_of_map(image, clean, diverging=diverging),
        ATTACKED: "" if attacked is None else png_of_map(image, attacked, diverging=diverging),
    }


def _rows(maker: Maker, means: Means) -> list[Row]:
    return [
        {"model": maker.probed.name, "block": label, "condition": condition, "measure": measure, **mean._asdict()}
        for (label, condition, measure), mean in means.items()
    ]


def _tables(found: Sequence[tuple[Maker, Means]], what: str, analysis: MapQuestion) -> list[Table]:
    columns: dict[str, dict[str, str]] = {}
    for maker, means in found:
        for condition in (CLEAN, ATTACKED):
            for measure in MEASURES:
                mean = means.get((maker.labels[-1], condition, measure))
                if mean is not None:
                    columns.setdefault(measure, {})[f"{maker.probed.name}, {condition}"] = mean.text()
    columns = {measure: columns[measure] for measure in MEASURES if measure in columns}
    keys = [f"{maker.probed.name}, {condition}" for maker, _ in found for condition in (CLEAN, ATTACKED)]
    keys = [key for key in keys if any(key in column for column in columns.values())]
    notes = [
        "means over images ± half of their 95 % intervals",
        "; ".join(f"{measure}: {MEASURES[measure]}" for measure in columns),
    ]
    if any(key.endswith(ATTACKED) for key in keys):
        notes.append(f"{ATTACKED}: images the model classifies correctly, after {analysis.attack} on it")
    tables = [side_by_side(f"{what[:1].upper()}{what[1:]}, last block", "", keys, columns, notes)]
    if any(len(maker.labels) > 1 for maker, _ in found):
        by_block = {
            maker.probed.name: {
                label: means[(label, CLEAN, "entropy")].text()
                for label in maker.labels
                if (label, CLEAN, "entropy") in means
            }
            for maker, means in found
        }
        labels = sorted({label for maker, _ in found for label in maker.labels}, key=int)
        tables.append(side_by_side(f"Entropy of {what} by layer, clean", "layer", labels, by_block))
    return tables


def _figures(found: Sequence[tuple[Maker, Means]], what: str) -> list[Figure]:
    shown = ("entropy", "spread", "centre", "on-mask", "overlap")
    names = tuple(name for name in shown if any((m.labels[-1], CLEAN, name) in means for m, means in found))
    series = []
    for maker, means in found:
        for condition in (CLEAN, ATTACKED):
            each = [means.get((maker.labels[-1], condition, name)) for name in names]
            if any(mean is not None for mean in each):
                points = [None if mean is None else (mean.mean, mean.low, mean.high) for mean in each]
                series.append(at_places(f"{maker.probed.name}, {condition}", points))
    title = f"{what[:1].upper()}{what[1:]}, last block"
    figures: list[Figure] = [Bars(title, "mean over images", names, tuple(series))]
    if any(len(maker.labels) > 1 for maker, _ in found):
        lines = [
            _line(maker, means, condition)
            for maker, means in found
            for condition in (CLEAN, ATTACKED)
            if (maker.labels[-1], condition, "entropy") in means
        ]
        figures.append(Curves(f"Entropy of {what} by layer", "layer", "entropy", tuple(lines)))
    return figures


def _line(maker: Maker, means: Means, condition: str) -> Series:
    each = [means[(label, condition, "entropy")] for label in maker.labels]
    return Series(
        f"{maker.probed.name}, {condition}",
        tuple(float(label) for label in maker.labels),
        tuple(mean.mean for mean in each),
        tuple(mean.low for mean in each),
        tuple(mean.high for mean in each),
    )


def _picture_figure(names: Sequence[str], pictures: Sequence[Sequence[dict[str, str]]], what: str) -> Pictures:
    attacked = any(picture[ATTACKED] for each in pictures for picture in each)
    conditions = (CLEAN, ATTACKED) if attacked else (CLEAN,)
    columns = ("image", *(f"{name}, {condition}" for name in names for condition in conditions))
    rows = [
        (pictures[0][at]["image"], *(each[at][condition] for each in pictures for condition in conditions))
        for at in range(len(pictures[0]))
    ]
    return Pictures(f"{what[:1].upper()}{what[1:]} of the first images", ("",) * len(rows), columns, tuple(rows))


def _remarks(maker: Maker, means: Means, attack: str) -> list[str]:
    last = maker.labels[-1]
    changes = {name: means.get((last, CHANGE, name)) for name in ("entropy", "spread", "centre")}
    known = {name: mean for name, mean in changes.items() if mean is not None}
    if not known:
        return []
    clear = [
        f"{name} {'rises' if mean.mean > 0 else 'falls'} by {abs(mean.mean):.3f}"
        for name, mean in known.items()
        if mean.low > 0 or mean.high < 0
    ]
    similarity = means.get((last, ATTACKED, "similarity"))
    alike = f"; clean and attacked maps correlate by {similarity.mean:.2f}" if similarity is not None else ""
    return [f"{maker.probed.name}: under {attack} " + (", ".join(clear) or "no number changes beyond sampling") + alike]
