"""The figures that an overview has something for: a few shapes, filled once, drawn by pages and by plots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vitattack.core.percent import percent
from vitattack.records.stats import Accuracy
from vitattack.report.overview import curves
from vitattack.report.overview.attachments import Attachments, GapHistogram
from vitattack.report.overview.curves import Curve, Stage, TransferMap
from vitattack.report.overview.kinds import KINDS, Kind
from vitattack.report.overview.overview import ImageSet, Overview


@dataclass(frozen=True)
class Head:
    """What a figure is about; `about` names the images, the threat and the attack."""

    kind: Kind
    title: str
    about: str
    note: str = ""


@dataclass(frozen=True)
class Lines:
    """Curves over one axis; steps are drawn as steps."""

    head: Head
    curves: tuple[Curve, ...]
    x_label: str
    logarithmic: bool = False
    steps: bool = False

    @property
    def names(self) -> list[str]:
        """A name for each curve, of what sets it apart from the others."""
        return distinct_names([(curve.model, curve.name) for curve in self.curves])


@dataclass(frozen=True)
class Intervals:
    """Shares with their intervals, one below the other."""

    head: Head
    rows: tuple[tuple[str, Accuracy], ...]


@dataclass(frozen=True)
class Stages:
    """What each stage of an attack bought."""

    head: Head
    stages: tuple[Stage, ...]


@dataclass(frozen=True)
class Matrix:
    """Values in rows and columns, with what is written into each cell; None where there is no value."""

    head: Head
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    texts: tuple[tuple[str, ...], ...]
    row_label: str
    column_label: str


@dataclass(frozen=True)
class Histograms:
    """A histogram of score gaps per block."""

    head: Head
    blocks: tuple[GapHistogram, ...]
    edges: tuple[float, ...]


Figure = Lines | Intervals | Stages | Matrix | Histograms


def figures(overview: Overview, attachments: Attachments = Attachments()) -> list[Figure]:
    """All figures, in the order of `KINDS`."""
    found: list[Figure] = [figure for images in overview.sets for figure in _of_images(images)]
    found += [_transfer(table, data) for data, table in attachments.transfers]
    for diagnosis in attachments.diagnoses:
        head = Head(
            "softmax",
            f"Attention scores of {diagnosis.model}",
            f"{diagnosis.data}, n = {diagnosis.n}",
            f"Verdict: {diagnosis.verdict}. Beyond a gap of 16.6 float32 rounds the largest weight to 1, beyond 87.3 the "
            "others leave its normal numbers.",
        )
        found.append(Histograms(head, diagnosis.blocks, tuple(attachments.edges)))
    order = list(KINDS)
    return sorted(found, key=lambda figure: order.index(figure.head.kind))


def distinct_names(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Names of a model and an attack each, without the one that is the same in all."""
    models, attacks = ({pair[at] for pair in pairs} for at in (0, 1))
    if len(models) == 1 and len(pairs) == len(attacks):
        return [attack for _, attack in pairs]
    if len(attacks) == 1 and len(pairs) == len(models):
        return [model for model, _ in pairs]
    return [f"{model}, {attack}" for model, attack in pairs]


def _of_images(images: ImageSet) -> Iterator[Figure]:
    about = f"{images.data}, n = {images.n}"
    for threat in dict.fromkeys(run.job.threat for run in images.runs):
        runs = [run for run in images.runs if run.job.threat == threat]
        models = {run.job.model for run in runs}
        where = f"{runs[0].job.model}, {threat}, {about}" if len(models) == 1 else f"{threat}, {about}"
        if len(runs) > 1:
            names = distinct_names([(run.job.model, run.attack) for run in runs])
            rows = tuple(zip(names, (run.robust for run in runs), strict=True))
            yield Intervals(Head("accuracy", "Robust accuracy by attack", where), rows)
        # candidates of another model cost this one nothing but the verdict
        own = [run for run in runs if curves.transferred(run.job.attack) is None]
        lines = tuple(curves.survivors_by_passes(run) for run in own)
        note = "The share of all images that the model still classifies correctly, by the passes spent on each image."
        head = Head("passes", "Survivors against passes", where, note)
        if lines:
            yield Lines(head, lines, "forward and backward passes", logarithmic=True, steps=True)
        found = tuple(curve for run in runs if (curve := curves.survivors_by_distance(run)) is not None)
        if found:
            note = "From the smallest change that each attack found; an upper bound on robustness at every eps."
            yield Lines(Head("distance", "Survivors against eps", where, note), found, "size of the change", steps=True)
    for norm, of_norm in curves.accuracy_by_budget(images).items():
        note = "Each point is a run of its own, with its 95 % interval; at 0 it is the clean accuracy."
        yield Lines(Head("budget", f"Robust accuracy against eps ({norm})", about, note), tuple(of_norm), "eps")
    yield from _of_runs(images, about)
    for table in curves.transfer_maps(images):
        yield _transfer(table, images.data)


def _of_runs(images: ImageSet, about: str) -> Iterator[Figure]:
    for run in images.runs:
        where = f"{run.job.model}, {run.job.threat}, {about}"
        stages = curves.stages_of(run)
        if sum(stage.broke for stage in stages) or any(stage.tried for stage in stages):
            yield Stages(Head("stages", f"What each stage of {run.attack} bought", where), tuple(stages))
        rows = curves.referee_of(run)
        if rows:
            note = "A success counts only on the plain model; the scaled-model protocol counts it where it was crafted."
            yield Intervals(Head("referee", f"The referee of {run.attack}", where, note), tuple(rows))
        moves = curves.spatial_map(run)
        if moves is not None:
            note = "Images by the shift and rotation of the candidate that fooled them."
            yield Matrix(
                Head("spatial", "Shifts that fooled", where, note),
                tuple(f"{y:g}" for y in moves.ty),
                tuple(f"{x:g}" for x in moves.tx),
                tuple(tuple(float(count) for count in row) for row in moves.counts),
                tuple(tuple(str(count) if count else "" for count in row) for row in moves.counts),
                "shift down, px",
                "shift right, px",
            )
            turned = tuple(
                Stage(f"{angle:g}°", count) for angle, count in zip(moves.angles, moves.by_angle, strict=True)
            )
            yield Stages(Head("spatial", "Rotations that fooled", where), turned)


def _transfer(table: TransferMap, data: str) -> Matrix:
    n = next((cell.n for row in table.cells for cell in row if cell is not None), 0)
    return Matrix(
        Head(
            "transfer",
            "Accuracy under transferred candidates",
            f"{table.attack}, {table.threat}, {data}, n = {n}",
            "Candidates are crafted on the model of the row and judged on that of the column; the diagonal is the white box.",
        ),
        table.sources,
        table.targets,
        tuple(tuple(None if cell is None else cell.accuracy for cell in row) for row in table.cells),
        tuple(tuple("" if cell is None else percent(cell.accuracy) for cell in row) for row in table.cells),
        "crafted on",
        "judged on",
    )
