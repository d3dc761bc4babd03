"""Universal patches: one patch for all images, wherever it lies (Brown et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from vitattack.attacks.catalogue import catalogued
from vitattack.attacks.gradient.loop import Gradient
from vitattack.attacks.gradient.starts import Start, Uniform
from vitattack.attacks.gradient.steps import Cosine, Momentum
from vitattack.attacks.losses.base import AnyLoss
from vitattack.attacks.losses.plain import Margin
from vitattack.attacks.patch.attack import WHOLE_BOX
from vitattack.attacks.patch.places import Place, Random
from vitattack.attacks.price import Price, PriceQuery
from vitattack.attacks.universal.shared import GREY, Shared
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.threats.patch import Patch, pasted


@dataclass(frozen=True)
class UniversalPatch(Shared):
    """One patch for all images, at places that are chosen anew for each of them and at every step."""

    threat: Patch = field(default_factory=Patch)
    place: Place = field(default_factory=Random)

    def blank(self, x: Tensor) -> Tensor:
        side = self.threat.side(x)
        return x.new_full((1, x.shape[1], side, side), GREY)

    def put(self, image: Tensor, x: Tensor, y: Tensor, victim: Attackable, rng: SampleRng) -> tuple[Tensor, ...]:
        places = self.place(self.threat, victim, x, y, rng=rng)
        return tuple(pasted(x, image, corners) for corners in places.corners.unbind(1))

    def price(self, query: PriceQuery) -> Price:
        return Price().more(query.look * self.place.count)


@catalogued(
    paper="Brown et al., 2017",
    quick="patch_universal(steps=5, batch=4)",
    threats=("patch",),
)
def patch_universal(
    threat: Patch,
    *,
    tries: int = 1,
    steps: int = 200,
    step: float = 0.1,
    batch: int = 32,
    loss: AnyLoss = Margin(),
    start: Start = Uniform(),
) -> UniversalPatch:
    """A universal patch: one for all images, made on calibration images and judged on others, at random places.

    It is made once per run by 200 steps on the mean loss of 32 images, each with the patch at a new random place (EOT), and
    kept with the run. Every image then gets it at one random place, or at `tries` of them in turn until one fools the model.
    """
    climb = Gradient(WHOLE_BOX, steps, Momentum(step, Cosine()), loss, start, "never")
    return UniversalPatch(climb, batch, threat=threat, place=Random(tries))
