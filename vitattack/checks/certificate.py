"""The certificate: can an attack find examples that are known to exist on this very model?

The binarisation test of Zimmermann, Brendel, Tramèr and Carlini (NeurIPS 2022). Around every image, inner points and one
point on the edge of the budget are mapped to the features that the head reads. A linear readout that tells the edge point
from all others takes the head's place, its threshold moved next to the edge point. That point is then an adversarial example
of a model that is otherwise the same, and an attack that can follow the model's gradients finds it or another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitattack.checks.exact_tests import at_least
from vitattack.checks.planted_model import PlantedModel
from vitattack.checks.readouts import Readouts, fit
from vitattack.core.errors import UsageError
from vitattack.core.progress import in_stage
from vitattack.core.rng import SampleRng
from vitattack.evaluation.batch_runner import read_batch
from vitattack.evaluation.evaluate import evaluate
from vitattack.evaluation.listener import EvaluationListener
from vitattack.evaluation.prepare import Prepared
from vitattack.evaluation.setup import Precision
from vitattack.models.head import Head, HeadTap, find_head
from vitattack.models.lost_gradients import NoGradient
from vitattack.models.victim import Victim, as_victim, frozen
from vitattack.threats.lp import LpBall

IMAGES, INNER = 64, 96
RANDOM = "random(tries=32)"
INSIDE = 0.95  # of the budget: where inner points lie
# How far the threshold is moved from the inner points to the edge point. The first with which the built model errs at the
# edge point is taken: whatever follows the head may swallow a small lead.
CLOSENESS = (0.999, 0.99, 0.9, 0.5)
CERTIFIED = 0.95  # of the planted examples that an attack has to find
EASY = 0.25  # of the planted images: if random points solve more, the test says nothing


class Found(NamedTuple):
    """An attack, and on how many of the planted models it found an example."""

    attack: str
    found: int


@dataclass(frozen=True)
class Certificate:
    """Outcome of the test: examples `planted` for as many of the `images`, and how many of them each attack found."""

    images: int
    planted: int
    by_chance: int  # planted images that random points solve, which show nothing and are left out
    inner: int  # inner points per image
    width: int  # of the features
    at_head: bool  # False if readouts had to read the logits, since no head was found
    closeness: float  # the least that any readout was given
    found: tuple[Found, ...]
    passes: float  # per image, all attacks and all preparation together

    @property
    def says_nothing(self) -> str:
        """Why the test says nothing, in words; empty if it does say something."""
        if not self.planted:
            return f"nothing could be planted for any of {self.images} images"
        if self.by_chance > EASY * self.planted:
            return f"random points find {self.by_chance} of {self.planted} planted examples"
        return ""

    @property
    def tested(self) -> int:
        return self.planted - self.by_chance

    def found_by(self, attack: str) -> int:
        """The planted examples that an attack found."""
        return next((each.found for each in self.found if each.attack == attack), 0)

    def is_passed_by(self, attack: str) -> bool:
        """Whether an attack found as many as it has to."""
        return self.found_by(attack) >= CERTIFIED * self.tested

    def line(self, attack: str) -> str:
        """The outcome of an attack in one line."""
        if self.says_nothing:
            return f"certificate: {self.details}"
        found = self.found_by(attack)
        least = at_least(found, self.tested)
        return f"certificate: {found} of {self.tested} planted examples found, at least {100 * least:.1f} % (95 %)"

    @property
    def details(self) -> str:
        """The outcome in words, attack by attack."""
        if self.says_nothing:
            return f"none, since {self.says_nothing}"
        where = (
            f"{self.width} features of the head" if self.at_head else f"{self.width} logits, since no head was found"
        )
        planted = f"{self.planted} of {self.images} images hold a planted example ({self.inner} points, {where})"
        chance = [f"{self.by_chance} that random points find are left out"] if self.by_chance else []
        shares = [f"{each.attack} finds {each.found} of {self.tested}" for each in self.found]
        return ", ".join([planted, *chance, *shares])

    def json(self) -> dict[str, Any]:
        return {
            **{name: value for name, value in self.__dict__.items() if name != "found"},
            "says_nothing": self.says_nothing,
            "tested": self.tested,
            "found": [{**each._asdict(), "at_least": at_least(each.found, self.tested)} for each in self.found],
        }


def certify(
    victim: Victim,
    x: Tensor,
    ball: LpBall,
    attacks: Sequence[str],
    *,
    seed: int = 0,
    inner: int = INNER,
    corner: bool = False,
    batch_size: int = 64,
    precision: Precision = "fp32",
) -> Certificate:
    """Plant an example in the ball around each image, and count which of them the attacks find.

    With `corner` the planted points lie in corners of the ball rather than anywhere on its edge.
    """
    if not len(x):
        raise UsageError("a certificate needs at least one image")
    if ball.eps <= 0:
        raise UsageError("a certificate needs a budget above zero: nothing can be planted at eps 0")
    x = _distinct(x)
    planted, _, facts = plant(victim, x, ball, seed=seed, inner=inner, corner=corner, batch_size=batch_size)
    kept = facts.planted.nonzero().flatten()
    passes = (facts.inner + 3.0) * len(
        x
    )  # inner points, the edge point, and at least one look at each of edge and image
    settings: dict[str, Any] = {"threat": str(ball), "seed": seed, "batch_size": batch_size, "device": str(x.device)}
    settings |= {"precision": precision, "certificate": False, "listener": EvaluationListener()}
    found, by_chance = [], 0
    if len(kept):
        model = as_victim(planted, x, f"{victim.name}, planted")
        for attack in in_stage("planted examples", (RANDOM, *attacks)):
            zeros = torch.zeros(len(kept), dtype=torch.long)
            try:
                (result,) = evaluate(model, attack, data=(x[kept], zeros), **settings).results
            except NoGradient:
                found.append(Found(attack, 0))
                continue
            passes += sum(r.forwards + r.backwards for r in result.records)
            solved = torch.tensor([r.status == "fooled" for r in result.records])
            if attack == RANDOM:
                by_chance, kept = int(solved.sum()), kept[~solved]
            else:
                found.append(Found(attack, int(solved.sum())))
            if not len(kept):
                break
    return Certificate(
        images=len(x),
        planted=len(kept) + by_chance,
        by_chance=by_chance,
        inner=facts.inner,
        width=facts.width,
        at_head=facts.at_head,
        closeness=facts.closeness,
        found=tuple(found),
        passes=passes / len(x),
    )


def first_images(prepared: Prepared, count: int) -> Tensor:
    """The images that a certificate is made on: the first ones of equal size."""
    rows = prepared.images.alike(prepared.images.rows)[:count]
    return read_batch(prepared.images, rows, prepared.victim, prepared.victim.mean.device)[0]


class PlantingFacts(NamedTuple):
    """Which images (B,) hold a planted example, and how it was done."""

    planted: Tensor
    inner: int
    width: int
    at_head: bool
    closeness: float


def plant(
    victim: Victim, x: Tensor, ball: LpBall, *, seed: int, inner: int, corner: bool, batch_size: int
) -> tuple[PlantedModel, Tensor, PlantingFacts]:
    """Build the model with planted examples; returns it with the examples."""
    rng = SampleRng(seed, tuple(range(len(x)))).child("certificate")
    head = find_head(victim, x[:4])
    edge = edge_points(ball, x, rng.child("edge"), corner=corner)
    width = head.width if head is not None else victim.num_classes
    count = max(1, min(inner, width - 1))
    features, scores = [], []
    small = LpBall(ball.norm, INSIDE * ball.eps)
    for number in in_stage("features of planted examples", range(count)):
        points = x if number == 0 else small.random(x, rng.child("inner", number))
        found = _features(victim, head, points, batch_size)
        features.append(found[0])
        scores.append(found[1])
    outer, _ = _features(victim, head, edge, batch_size)
    readouts = fit(torch.stack(features, 1), outer)
    spread = torch.stack(scores, 1).flatten(1)
    low, high = spread.amin(1), spread.amax(1)
    reach = _reach(readouts, torch.stack(features, 1)).clamp_min(1e-30)
    scale = ((high - low) / (2 * reach)).clamp_min(1e-30)
    threshold = torch.zeros(len(x), device=x.device)
    planted = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    offset, used = (low + high) / 2, CLOSENESS[0]
    model = PlantedModel(victim, head, x, readouts, threshold, scale, offset).eval()
    for closeness in CLOSENESS:
        missing = ~planted & readouts.separates
        if not bool(missing.any()):
            break
        model.threshold[missing] = (1 - closeness) * readouts.lead[missing]
        holds = _answers(model, edge, batch_size).eq(1) & _answers(model, x, batch_size).eq(0)
        used = closeness if bool((holds & missing).any()) else used
        planted |= holds & missing
    allowed = ball.allows(x, edge).to(planted.device)
    return model, edge, PlantingFacts(planted & allowed, count, width, head is not None, used)


def edge_points(ball: LpBall, x: Tensor, rng: SampleRng, *, corner: bool = False) -> Tensor:
    """Points at distance eps exactly: noise turned inwards where it would leave the box, so that nothing is clipped."""
    noise = rng.uniform(x, -1.0, 1.0) if ball.norm == "linf" else rng.normal(x)
    noise = noise.sign() if corner else noise
    size = ball.size(torch.zeros_like(x), noise).clamp_min(1e-12).to(x)
    noise = noise * (ball.eps / size).view(-1, 1, 1, 1)
    leaves = (x + noise < 0) | (x + noise > 1)
    return ball.project(x, x + torch.where(leaves, -noise, noise))


def _features(victim: Victim, head: Head | None, x: Tensor, batch_size: int) -> tuple[Tensor, Tensor]:
    """What the head reads of images, and the scores it gives; without a head, the logits are both."""
    features, scores = [], []
    with frozen(victim), torch.no_grad():
        for part in torch.split(x, batch_size):
            with HeadTap() as tap:
                logits = victim(part)
            features.append(logits if head is None else tap.features[head.call])
            scores.append(logits if head is None else tap.scores[head.call])
    return torch.cat(features), torch.cat(scores)


def _reach(readouts: Readouts, inner: Tensor) -> Tensor:
    """(B,) the largest distance of a score from the readout's zero."""
    return ((inner - readouts.origin[:, None]) * readouts.weight[:, None]).sum(2).abs().amax(1)


def _answers(model: PlantedModel, x: Tensor, batch_size: int) -> Tensor:
    with frozen(model), torch.no_grad():
        return torch.cat([model(part).argmax(1) for part in torch.split(x, batch_size)])


def _distinct(x: Tensor) -> Tensor:
    """Images without repetitions, since a planted model knows an image by its pixels."""
    _, group = torch.unique(x.flatten(1), dim=0, return_inverse=True)
    first = {int(number): row for row, number in reversed(list(enumerate(group.tolist())))}
    return x[sorted(first.values())]
