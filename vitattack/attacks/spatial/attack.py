"""Shifts and rotations of the whole image: an exhaustive grid, and random draws (Engstrom et al., ICML 2019)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vitattack.attacks.base import Attack, Calibration, Crafted, Traits, blank_evidence
from vitattack.attacks.catalogue import catalogued
from vitattack.attacks.losses.base import AnyLoss, is_correct, is_fooled
from vitattack.attacks.losses.plain import Margin
from vitattack.attacks.price import Price, PriceQuery
from vitattack.attacks.spatial.grid import Lattice
from vitattack.attacks.spatial.report import spatial_section
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.models.victim import frozen
from vitattack.records.section import Run, Section
from vitattack.threats.spatial import NAMES, Spatial, transform, transforms

# Transforms tried between two looks at who is fooled: each doubling costs a fooled image no more than it had cost.
WIDEST = 32
# So many images per forward at least, where there are that many left to try: fewer leave a CPU idle.
FEWEST = 8


class _Trial:
    """What the transforms tried so far have done to one batch."""

    def __init__(self, victim: Attackable, x: Tensor, y: Tensor, table: Tensor) -> None:
        """`table` holds transforms: (N, 3), or (B, N, 3) where each image has its own."""
        self.victim, self.x, self.y, self.table = victim, x, y, table
        self.look = victim.look
        self.evidence = blank_evidence(x)
        self.fooled, self.first = self.evidence["fooled"], self.evidence["first_fooled"]
        self.tried = torch.zeros_like(self.first)
        self.margin = torch.full((len(x),), -torch.inf, dtype=x.dtype, device=x.device)
        self.chosen = x.new_zeros(len(x), 3)  # not moved at all

    def run(self, wanted: Sequence[int], rows: Tensor, *, everyone: bool = False) -> Tensor:
        """The wanted transforms in turn on these rows, each until one fools it; (B,) how many were seen to fool it."""
        hits = torch.zeros_like(self.tried)
        for wave in _waves(wanted):
            if len(rows) == 0:
                break
            wave = wave.to(rows.device)
            fooled, margin = self._look(wave, rows)
            self._note(wave, rows, fooled, margin)
            hits[rows] += fooled.sum(0)
            if not everyone:
                rows = rows[~fooled.any(0)]
        return hits

    def crafted(self, **more: Tensor) -> Crafted:
        """The candidates: what fooled an image, or else came nearest to it."""
        self.evidence["forwards"] += self.look * self.tried
        for name, values in zip(NAMES, self.chosen.unbind(1), strict=True):
            self.evidence[name] = values
        return Crafted(transform(self.x, *self.chosen.unbind(1)), {**self.evidence, **more})

    def _look(self, wave: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(T, R) who is fooled by which, and the margins; -inf where the output is not finite."""
        most = max(len(self.x), FEWEST)
        found = []
        for part in torch.split(wave, max(1, most // len(rows))):
            x_adv = self._moved(part, rows)
            logits = self.victim(x_adv)
            logits = self.victim.verdict(x_adv, logits)
            y = self.y[rows].repeat(len(part))
            margin = Margin()(logits, y).masked_fill(~torch.isfinite(logits).all(1), -torch.inf)
            found.append(torch.stack([is_fooled(logits, y).to(margin), margin]).view(2, len(part), len(rows)))
        fooled, margin = torch.cat(found, 1)
        return fooled.bool(), margin.to(self.margin)

    def _moved(self, part: Tensor, rows: Tensor) -> Tensor:
        """(T * R, C, H, W)"""
        x = self.x[rows]
        if self.table.dim() == 2:
            return transforms(x, *self.table[part].unbind(1)).flatten(0, 1)
        own = self.table[rows][:, part].transpose(0, 1).flatten(0, 1)
        return transform(x.repeat(len(part), 1, 1, 1), *own.unbind(1))

    def _note(self, wave: Tensor, rows: Tensor, fooled: Tensor, margin: Tensor) -> None:
        any_fooled = fooled.any(0)
        fresh = any_fooled & ~self.fooled[rows]
        self.first[rows[fresh]] = (self.tried[rows] + fooled.int().argmax(0))[fresh]
        self.tried[rows] += len(wave)
        # of those that fool the one of the largest margin, and where none does simply that
        margin = margin.masked_fill(any_fooled & ~fooled, -torch.inf)
        best, at = margin.max(0)
        better = fresh | ((any_fooled == self.fooled[rows]) & (best > self.margin[rows]))
        self.margin[rows[better]] = best[better]
        table = self.table[wave[at]] if self.table.dim() == 2 else self.table[rows, wave[at]]
        self.chosen[rows[better]] = table[better]
        self.fooled[rows] |= any_fooled


def _waves(wanted: Sequence[int]) -> Iterator[Tensor]:
    """1, 1, 2, 4, 8, ... of them: whoever is fooled early is tried with few, and the hardy with many at a time."""
    start = 0
    while start < len(wanted):
        stop = min(len(wanted), start + min(max(1, start), WIDEST))
        yield torch.tensor(wanted[start:stop])
        start = stop


@dataclass(frozen=True)
class SpatialGrid(Attack):
    """Every transform of a lattice on whoever still stands, in an order that decides the cost and never the verdict."""

    threat: Spatial
    lattice: Lattice
    full: bool = False
    by_axis: bool = True  # tell of shifts alone and of rotations alone
    calibration: int = 32
    order: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.calibration < 0:
            raise UsageError("the number of calibration images is 0 (a fixed order) or more")

    @property
    def traits(self) -> Traits:
        return Traits(calibration="useful" if self.calibration else "none")

    def price(self, query: PriceQuery) -> Price:
        return Price().more(query.look * len(self.lattice))

    def with_loss(self, loss: AnyLoss) -> SpatialGrid:
        raise UsageError("spatial tries transforms and has no loss to replace")

    def report(self, run: Run) -> tuple[Section, ...]:
        return spatial_section(run)

    # Once per job: the order.

    def prepare(self, victim: Attackable, calibration: Calibration, *, rng: SampleRng) -> SpatialGrid:
        """A coarse part of the lattice on all calibration images tells in which order to try all of it."""
        if not self.calibration:
            return self
        x, y = (rows[: self.calibration] for rows in calibration())
        if len(x) == 0:
            return self
        table = self.lattice.table(self.threat, x).to(x)[torch.tensor(self.lattice.coarse())]
        margins = []
        with frozen(victim), torch.no_grad():
            right = is_correct(victim(x), y)
            x, y = x[right], y[right]
            for at in table if len(x) else ():
                margins.append(Margin()(victim(transforms(x, *at[:, None])[0]), y).cpu())
        seen = torch.stack(margins) if margins else torch.zeros(len(table), 0)
        return replace(self, order=tuple(self.lattice.learned_order(seen)))

    def learned(self) -> dict[str, Any] | None:
        return {"order": list(self.order)} if self.order else None

    def recall(self, victim: Attackable, content: dict[str, Any]) -> SpatialGrid:
        order = content.get("order")
        if not isinstance(order, list) or sorted(order) != list(range(len(self.lattice))):
            raise UsageError("the stored order of transforms is broken: add --fresh to learn it again")
        return replace(self, order=tuple(order))

    # Per batch.

    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        order = list(self.order or self.lattice.fixed_order())
        table = self.lattice.table(self.threat, x).to(x)
        trial = _Trial(victim, x, y, table)
        everyone = torch.arange(len(x), device=x.device)
        identity = [n for n in order if n == self.lattice.identity]
        shifts = [n for n in order if n in self.lattice.shifts and n not in identity]
        rotations = [n for n in order if n in self.lattice.rotations and n not in identity]
        rest = [n for n in order if n not in {*shifts, *rotations, *identity}]
        if not self.by_axis:
            shifts, rotations, identity, rest = [], [], [], order
        with frozen(victim), torch.no_grad():
            still = trial.run(identity, everyone, everyone=self.full)
            alive = everyone if self.full else everyone[still == 0]
            by_shift = still + trial.run(shifts, alive, everyone=self.full)
            by_rotation = still + trial.run(rotations, alive, everyone=self.full)
            alive = everyone if self.full else everyone[~trial.fooled]
            others = trial.run(rest, alive, everyone=self.full)
        extra: dict[str, Tensor] = {}
        if self.full:
            extra["fooling"] = by_shift + by_rotation + others - still
            extra["transforms"] = torch.full_like(still, len(self.lattice))
        if self.by_axis:
            extra |= {"fooled_by_shift": by_shift > 0, "fooled_by_rotation": by_rotation > 0}
        return trial.crafted(**extra)


@dataclass(frozen=True)
class SpatialRandom(Attack):
    """Transforms drawn evenly from the range, for each image its own, until one of them fools the model."""

    threat: Spatial
    k: int

    def __post_init__(self) -> None:
        if not 1 <= self.k <= 1_000_000:
            raise UsageError(f"{self.k} random transforms are too few or too many: draw 1 to 1000000")

    def price(self, query: PriceQuery) -> Price:
        return Price().more(query.look * self.k)

    def with_loss(self, loss: AnyLoss) -> SpatialRandom:
        raise UsageError("spatial_random draws transforms and has no loss to replace")

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
    """Shifts and rotations, all on a grid: 9 x 9 x 31 = 2,511 equally spaced in the range of the threat.

    Images leave with the first transform that fools the model; the order is learned from a few transforms (63) of
    `calibration` other images, 0 for a fixed one, and changes no verdict. Accuracy under shifts alone and under rotations
    alone stands beside the whole; report=False leaves it out. full_grid=True tries everything on everyone, returns the
    worst transform and counts those that fool. Pixels are the model's own: spatial:4.17%,30deg is 16 px at 384 and
    scales with the input, as in `vitattack eval tiny-vit spatial --threat spatial:4.17%,30deg`.
    """
    lattice = Lattice(threat.shift > 0, threat.angle > 0, shifts, angles)
    # the whole grid holds the report and has no use for an order
    return SpatialGrid(threat, lattice, full_grid, report or full_grid, 0 if full_grid else calibration)


@catalogued(
    paper="Engstrom et al., ICML 2019 (worst-of-10)",
    quick="spatial_random(k=3)",
    threats=("spatial",),
    black_box=True,
)
def spatial_random(threat: Spatial, *, k: int = 10) -> SpatialRandom:
    """The worst of k = 10 random shifts with rotations, drawn evenly from the range of the threat."""
    return SpatialRandom(threat, k)
