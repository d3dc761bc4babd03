"""Places of a patch: given, random, at the largest gradient or attention, searched, or everywhere in turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from vitattack.attacks.gradient.loop import Gradient
from vitattack.attacks.gradient.starts import Clean
from vitattack.attacks.gradient.steps import Steepest
from vitattack.attacks.losses.base import mean_answer
from vitattack.attacks.losses.plain import Margin
from vitattack.attacks.price import Price, PriceQuery
from vitattack.core.errors import UsageError
from vitattack.core.progress import in_stage
from vitattack.core.registry import Registry
from vitattack.core.rng import SampleRng
from vitattack.models.attention.attention_map import AttentionMap
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.base import Attackable
from vitattack.models.blocks.attended import Readable, attended, received_layers
from vitattack.models.victim import Victim, frozen
from vitattack.threats.patch import Patch


class Places(NamedTuple):
    """Places to try in turn, (B, K, 2) rows and columns of upper left corners, and the passes it took to find them."""

    corners: Tensor
    forwards: int = 0
    backwards: int = 0


class Place(Protocol):
    """Chooses places of patches. Where it asks the model for more than passes, it does so once, in `prepare`."""

    @property
    def count(self) -> int:
        """Places of one image that are tried in turn."""
        return 1

    @property
    def reads_attention(self) -> bool:
        return False

    def prepare(self, victim: Attackable) -> Self:
        return self

    def price(self, query: PriceQuery) -> Price:
        return Price()

    def __call__(self, threat: Patch, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Places: ...


PLACES: Registry[type[Place]] = Registry("place", entry_point_group="vitattack.places")


@PLACES.register("at")
@dataclass(frozen=True)
class At(Place):
    """A given place, the same in every image: row and column of its upper left corner, in pixels."""

    top: int
    left: int

    def __call__(self, threat: Patch, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Places:
        for value, lines in zip((self.top, self.left), threat.lines(x), strict=True):
            if value not in lines.tolist():
                raise UsageError(
                    f"no corner of {threat} lies at row {self.top}, column {self.left} of images of {x.shape[-1]} x "
                    f"{x.shape[-2]} px: use 0 to {int(lines[-1])} in steps of {threat.grid}"
                )
        return Places(torch.tensor([self.top, self.left], device=x.device).expand(len(x), 1, 2))


@PLACES.register("random")
@dataclass(frozen=True)
class Random(Place):
    """Random places, `n` of them in turn."""

    n: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.n <= 10_000:
            raise UsageError(f"{self.n} random places are too few or too many: use 1 to 10000")

    @property
    def count(self) -> int:
        return self.n

    def __call__(self, threat: Patch, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Places:
        shares = rng.child("places").uniform(x.new_empty(len(x), self.n, 2, dtype=torch.float64))
        lines = threat.lines(x)
        numbers = [(shares[..., axis] * len(each)).long().clamp_max(len(each) - 1) for axis, each in enumerate(lines)]
        return Places(torch.stack([each[number] for each, number in zip(lines, numbers, strict=True)], -1))


@PLACES.register("every")
@dataclass(frozen=True)
class Every(Place):
    """All places of a grid of `across` x `across` in turn, equally spaced from corner to corner of the image."""

    across: int = 8

    def __post_init__(self) -> None:
        if not 1 <= self.across <= 1000:
            raise UsageError(f"{self.across} places across are too few or too many: use 1 to 1000")

    @property
    def count(self) -> int:
        return self.across**2

    def __call__(self, threat: Patch, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Places:
        rows, columns = (_spread(lines, self.across) for lines in threat.lines(x))
        return Places(torch.cartesian_prod(rows, columns).view(1, -1, 2).expand(len(x), -1, -1))


@PLACES.register("search")
@dataclass(frozen=True)
class Search(Every):
    """The `best` of a grid of places, by the margin of a few steps of PGD at each of them."""

    across: int = 4
    steps: int = 3
    best: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (1 <= self.best <= self.across**2 and self.steps >= 1):
            raise UsageError("search takes at least 1 step, and the best of no more places than there are")

    @property
    def count(self) -> int:
        return self.best

    def price(self, query: PriceQuery) -> Price:
        return self._short().price(query).times(self.across**2)

    def _short(self) -> Gradient:
        ball = Patch().at(torch.empty(0, 2))
        return Gradient(ball, self.steps, Steepest(0.5), Margin(), Clean(), stop="never")

    def __call__(self, threat: Patch, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Places:
        tried = super().__call__(threat, victim, x, y, rng=rng).corners
        short, margins, forwards, backwards = self._short(), [], 0, 0
        for corners in in_stage("places", list(tried.unbind(1))):
            crafted = replace(short, ball=threat.at(corners))(victim, x, y, rng=rng.child("search"))
            margins.append(crafted.evidence["margin"])
            if len(x):
                forwards += int(crafted.evidence["forwards"][0])
                backwards += int(crafted.evidence["backwards"][0])
        order = torch.stack(margins, 1).argsort(dim=1, descending=True, stable=True)[:, : self.best]
        return Places(tried.gather(1, order[..., None].expand(-1, -1, 2)), forwards, backwards)


@PLACES.register("gradient")
@dataclass(frozen=True)
class LargestGradient(Place):
    """Where the gradients of the margin at the clean image add up to most."""

    def price(self, query: PriceQuery) -> Price:
        return Price().more(query.answers, query.answers)

    def __call__(self, threat: Patch, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Places:
        if len(x) == 0:
            return Places(torch.zeros(0, 1, 2, dtype=torch.long, device=x.device))
        with frozen(victim), torch.enable_grad():
            point = x.clone().requires_grad_()
            (grad,) = torch.autograd.grad(Margin()(mean_answer(victim(point)), y).sum(), point)
        heat = grad.nan_to_num(0.0, 0.0, 0.0).abs().sum(1)
        return Places(hottest(threat, heat, x)[:, None], victim.answers, victim.answers)


@PLACES.register("attention")
@dataclass(frozen=True)
class MostAttention(Place):
    """Where patches receive most attention from all tokens in a layer: the choice of Patch-Fool, which takes layer 4."""

    layer: int = 4
    layers: AttentionMap | None = field(default=None, compare=False, repr=False)
    readable: Readable | None = field(default=None, compare=False, repr=False)

    @property
    def reads_attention(self) -> bool:
        return True

    def price(self, query: PriceQuery) -> Price:
        return Price().more(1)

    def prepare(self, victim: Attackable) -> MostAttention:
        if not isinstance(victim, Victim):
            raise UsageError("the attention of a model is read from a Victim: wrap the model first")
        layers = attention_layers(victim, victim.grey())
        found = received_layers(victim, layers)
        require_received(layers, found, victim.name)
        number = min(found, key=lambda each: abs(each - self.layer))
        return replace(self, layers=layers, readable=found[number], layer=number)

    def __call__(self, threat: Patch, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Places:
        ready = self if self.layers is not None else self.prepare(victim)
        assert isinstance(victim, Victim) and ready.layers is not None and ready.readable is not None
        if len(x) == 0:
            return Places(torch.zeros(0, 1, 2, dtype=torch.long, device=x.device))
        received = attended(victim, ready.layers, {ready.layer: ready.readable}, x)[ready.layer]
        heat = F.interpolate(received[:, None], x.shape[-2:], mode="nearest")[:, 0]
        return Places(hottest(threat, heat, x)[:, None], 1)


def require_received(layers: AttentionMap, found: Mapping[int, Readable], name: str) -> None:
    """Refuse models of which no layer attends from every patch to every patch."""
    layers.require("no place receives any: use place=gradient")
    if not found:
        raise UsageError(
            f"no attention layer of '{name}' attends from every patch to every patch (windows, pooled keys or channels), so "
            "no place can be chosen by it: use place=gradient or place=search"
        )


def hottest(threat: Patch, heat: Tensor, x: Tensor) -> Tensor:
    """(B, H, W) -> (B, 2) the place at which a patch covers most heat."""
    side = threat.side(x)
    sums = F.avg_pool2d(heat.double()[:, None], side, stride=1)[:, 0]
    rows, columns = threat.lines(x)
    sums = sums[:, rows][:, :, columns]
    best = sums.flatten(1).argmax(1)
    return torch.stack([rows[best // len(columns)], columns[best % len(columns)]], 1)


def _spread(lines: Tensor, count: int) -> Tensor:
    """So many of the lines, from the first to the last; some of them twice if there are fewer."""
    at = torch.linspace(0, len(lines) - 1, count) if count > 1 else torch.tensor([(len(lines) - 1) / 2])
    return lines[at.round().long()]
