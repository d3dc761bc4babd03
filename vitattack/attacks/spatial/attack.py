"""Shifts and rotations of the whole image: an exhaustive grid, and random draws (Engstrom et al., ICML 2019)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vitattack.attacks.base import Attack, Calibration, Crafted, Traits, blank_evidence
from vitattack.attacks.catalogue import catalogued
from vitattack.attacks.losses.base import AnyLoss, fools, is_correct
from vitattack.attacks.losses.plain import Margin
from vitattack.attacks.price import Price, PriceQuery
from vitattack.attacks.spatial.grid import TransformGrid
from vitattack.attacks.spatial.report import spatial_section
from vitattack.core.errors import UsageError
from vitattack.core.progress import in_stage
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.models.victim import frozen
from vitattack.records.report_section import Run, Section
from vitattack.threats.spatial import NAMES, Spatial, transform, transforms

# Most transforms tried before fooled images leave; waves double, so a fooled image at most doubles its cost.
LARGEST_WAVE = 32
# Smallest batch of a forward while transforms are left to try: fewer images leave a CPU idle.
SMALLEST_BATCH = 8


class _Trial:
    """Outcome of the transforms tried so far on one batch."""

    def __init__(self, victim: Attackable, x: Tensor, y: Tensor, table: Tensor) -> None:
        """Start with no transform tried; `table` is (N, 3), or (B, N, 3) if each image has its own transforms."""
        self.victim, self.x, self.y, self.table = victim, x, y, table
        self.forwards_per_query = victim.look
        self.evidence = blank_evidence(x)
        self.fooled, self.first = self.evidence["fooled"], self.evidence["first_fooled"]
        self.tried = torch.zeros_like(self.first)
        self.margin = torch.full((len(x),), -torch.inf, dtype=x.dtype, device=x.device)
        self.chosen = x.new_zeros(len(x), 3)  # the identity

    def run(self, wanted: Sequence[int], rows: Tensor, *, all_rows: bool = False) -> Tensor:
        """Try transforms in order on these rows until one fools the model; (B,) number that did."""
        hits = torch.zeros_like(self.tried)
        for wave in in_stage("waves of transforms", list(_waves(wanted))):
            if len(rows) == 0:
                break
            wave = wave.to(rows.device)
            fooled, margin = self._outcomes(wave, rows)
            self._note(wave, rows, fooled, margin)
            hits[rows] += fooled.sum(0)
            if not all_rows:
                rows = rows[~fooled.any(0)]
        return hits

    def crafted(self, **more: Tensor) -> Crafted:
        """Return as candidates the transformed images with the largest margin, among successes if there are any."""
        self.evidence["forwards"] += self.forwards_per_query * self.tried
        for name, values in zip(NAMES, self.chosen.unbind(1), strict=True):
            self.evidence[name] = values
        return Crafted(transform(self.x, *self.chosen.unbind(1)), {**self.evidence, **more})

    def _outcomes(self, wave: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(T, R) successes and margins; the margin is -inf where the output is not finite."""
        most = max(len(self.x), SMALLEST_BATCH)
        outcomes = []
        for part in torch.split(wave, max(1, most // len(rows))):
            x_adv = self._moved(part, rows)
            logits = self.victim(x_adv)
            logits = self.victim.verdict(x_adv, logits)
            y = self.y[rows].repeat(len(part))
            margin = Margin()(logits, y).masked_fill(~torch.isfinite(logits).all(1), -torch.inf)
            outcomes.append(
                torch.stack([fools(self.victim, x_adv, logits, y).to(margin), margin]).view(2, len(part), len(rows))
            )
        fooled, margin = torch.cat(outcomes, 1)
        return fooled.bool(), margin.to(self.margin)

    def _moved(self, part: Tensor, rows: Tensor) -> Tensor:
        """(T * R, C, H, W) transformed images."""
        x = self.x[rows]
        if self.table.dim() == 2:
            return transforms(x, *self.table[part].unbind(1)).flatten(0, 1)
        own = self.table[rows][:, part].transpose(0, 1).flatten(0, 1)
        return transform(x.repeat(len(part), 1, 1, 1), *own.unbind(1))

    def _note(self, wave: Tensor, rows: Tensor, fooled: Tensor, margin: Tensor) -> None:
        any_fooled = fooled.any(0)
        newly_fooled = any_fooled & ~self.fooled[rows]
        self.first[rows[newly_fooled]] = (self.tried[rows] + fooled.int().argmax(0))[newly_fooled]
        self.tried[rows] += len(wave)
        # the largest margin among successes, or among all where there is none
        margin = margin.masked_fill(any_fooled & ~fooled, -torch.inf)
        best, at = margin.max(0)
        better = newly_fooled | ((any_fooled == self.fooled[rows]) & (best > self.margin[rows]))
        self.margin[rows[better]] = best[better]
        table = self.table[wave[at]] if self.table.dim() == 2 else self.table[rows, wave[at]]
        self.chosen[rows[better]] = table[better]
        self.fooled[rows] |= any_fooled


def _waves(wanted: Sequence[int]) -> Iterator[Tensor]:
    """Split into waves of 1, 1, 2, 4, 8, ...: easily fooled images meet few transforms, robust ones many at a time."""
    start = 0
    while start < len(wanted):
        stop = min(len(wanted), start + min(max(1, start), LARGEST_WAVE))
        yield torch.tensor(wanted[start:stop])
        start = stop


@dataclass(frozen=True)
class SpatialGrid(Attack):
    """Tries all transforms of a grid on the survivors; their order affects the cost and never the verdict."""

    threat: Spatial
    grid: TransformGrid
    full: bool = False
    by_axis: bool = True  # report shifts alone and rotations alone
    calibration: int = 32
    order: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.calibration < 0:
            raise UsageError("the number of calibration images is 0 (a fixed order) or more")

    @property
    def traits(self) -> Traits:
        return Traits(calibration="useful" if self.calibration else "none")

    def price(self, query: PriceQuery) -> Price:
        return Price().more(query.look * len(self.grid))

    def with_loss(self, loss: AnyLoss) -> SpatialGrid:
        raise UsageError("spatial has no loss to replace: use pgd(loss=...)")

    def report(self, run: Run) -> tuple[Section, ...]:
        return spatial_section(run)

    # Once per job: the order.

    def prepare(self, victim: Attackable, calibration: Calibration, *, rng: SampleRng) -> SpatialGrid:
        """Learn the order of transforms from a coarse part of the grid on all calibration images."""
        if not self.calibration:
            return self
        x, y = (rows[: self.calibration] for rows in calibration())
        if len(x) == 0:
            return self
        table = self.grid.table(self.threat, x).to(x)[torch.tensor(self.grid.coarse())]
        margins = []
        with frozen(victim), torch.no_grad():
            right = is_correct(victim(x), y)
            x, y = x[right], y[right]
            for at in in_stage("ordering transforms", list(table) if len(x) else []):
                margins.append(Margin()(victim(transforms(x, *at[:, None])[0]), y).cpu())
        observed = torch.stack(margins) if margins else torch.zeros(len(table), 0)
        return replace(self, order=tuple(self.grid.learned_order(observed)))

    def learned(self) -> dict[str, Any] | None:
        return {"order": list(self.order)} if self.order else None

    def recall(self, victim: Attackable, content: dict[str, Any]) -> SpatialGrid:
        order = content.get("order")
        if not isinstance(order, list) or sorted(order) != list(range(len(self.grid))):
            raise UsageError("the stored order of transforms is invalid: add --fresh to learn it again")
        return replace(self, order=tuple(order))

    # Per batch.

    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        order = list(self.order or self.grid.fixed_order())
        table = self.grid.table(self.threat, x).to(x)
        trial = _Trial(victim, x, y, table)
        all_rows = torch.arange(len(x), device=x.device)
        identity = [n for n in order if n == self.grid.identity]
        shifts = [n for n in order if n in self.grid.shifts and n not in identity]
        rotations = [n for n in order if n in self.grid.rotations and n not in identity]
        rest = [n for n in order if n not in {*shifts, *rotations, *identity}]
        if not self.by_axis:
            shifts, rotations, identity, rest = [], [], [], order
        with frozen(victim), torch.no_grad():
            by_identity = trial.run(identity, all_rows, all_rows=self.full)
            survivors = all_rows if self.full else all_rows[by_identity == 0]
            by_shift = by_identity + trial.run(shifts, survivors, all_rows=self.full)
            by_rotation = by_identity + trial.run(rotations, survivors, all_rows=self.full)
            survivors = all_rows if self.full else all_rows[~trial.fooled]
            others = trial.run(rest, survivors, all_rows=self.full)
        extra: dict[str, Tensor] = {}
        if self.full:
            extra["fooling"] = by_shift + by_rotation + others - by_identity
            extra["transforms"] = torch.full_like(by_identity, len(self.grid))
        if self.by_axis:
            extra |= {"fooled_by_shift": by_shift > 0, "fooled_by_rotation": by_rotation > 0}
        return trial.crafted(**extra)


@dataclass(frozen=True)
class SpatialRandom(Attack):
    """Tries transforms drawn uniformly from the range, different ones per image, until one fools the model."""

    threat: Spatial
    k: int

    def __post_init__(self) -> None:
        if not 1 <= self.k <= 1_000_000:
            raise UsageError(f"{self.k} random transforms are too few or too many: draw 1 to 1000000")

    def price(self, query: PriceQuery) -> Price:
        return Price().more(query.look * self.k)

    def with_loss(self, loss: AnyLoss) -> SpatialRandom:
        raise UsageError("spatial_random has no loss to replace: use pgd(loss=...)")

    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        most = x.new_tensor([*self.threat.reach(x), self.threat.angle])
        table = most * rng.child("transforms").uniform(x.new_empty(len(x), self.k, 3), -1.0, 1.0)
        trial = _Trial(victim, x, y, table)
        with frozen(victim), torch.no_grad():
            trial.run(range(self.k), torch.arange(len(x), device=x.device))
        return trial.crafted()


@catalogued(
    paper="Bhojanapalli et al., ICCV 2021, after Engstrom et al., ICML 2019",
    quick="spatial(shifts=3, angles=5, calibration=4)",
    threats=("spatial",),
    black_box=True,
    draws=False,
)
def spatial(
    threat: Spatial,
    *,
    shifts: int = 9,
    angles: int = 31,
    full_grid: bool = False,
    report: bool = True,
    calibration: int = 32,
) -> SpatialGrid:
    """Shifts and rotations on a grid: 9 x 9 x 31 = 2,511 transforms, equally spaced in the range of the threat.

    Images leave with the first transform that fools the model; the order is learned from 63 transforms of `calibration`
    other images, 0 for a fixed order, and changes no verdict. Accuracies under shifts alone and rotations alone are
    reported as well, unless report=False. full_grid=True tries all transforms on all images, returns the worst and counts
    those that fool. Shifts scale with the input: spatial:4.17%,30deg is 16 px at 384 px, as in `vitattack eval tiny-vit
    spatial --threat spatial:4.17%,30deg`.
    """
    grid = TransformGrid(threat.shift > 0, threat.angle > 0, shifts, angles)
    # the full grid includes the report and needs no order
    return SpatialGrid(threat, grid, full_grid, report or full_grid, 0 if full_grid else calibration)


@catalogued(
    paper="Engstrom et al., ICML 2019 (worst-of-10)",
    quick="spatial_random(k=3)",
    threats=("spatial",),
    black_box=True,
)
def spatial_random(threat: Spatial, *, k: int = 10) -> SpatialRandom:
    """The worst of k = 10 random shifts with rotations, drawn uniformly from the range of the threat."""
    return SpatialRandom(threat, k)
