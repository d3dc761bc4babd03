"""One change for many images, made once per job from calibration images by the gradient loop and judged on others.

The loop climbs a single image, which stands for the change: a view puts it into a batch of images and answers for all of
them, as the view of a random model answers several times. It is drawn anew at every step, and so are places of patches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from vitattack.attacks.base import Attack, Calibration, Crafted, Traits, blank_search
from vitattack.attacks.gradient.loop import Gradient
from vitattack.attacks.losses.base import AnyLoss, claim_draws, fools, is_correct, logit_margin
from vitattack.attacks.price import Price, PriceQuery
from vitattack.core.errors import UsageError
from vitattack.core.progress import in_stage
from vitattack.core.rng import SampleRng
from vitattack.core.tensor_text import packed, unpacked
from vitattack.models.base import Attackable
from vitattack.models.victim import frozen
from vitattack.records.report_section import Run, Section

GREY = 0.5  # of the single image before the first step


@dataclass(frozen=True)
class Made:
    """A change that was made, as one image, and on how many of its own images it fools the model."""

    image: Tensor
    images: int
    fooled: int

    def plain(self) -> dict[str, Any]:
        return {**packed(self.image), "images": self.images, "fooled": self.fooled}

    @classmethod
    def read(cls, content: dict[str, Any]) -> Made:
        return cls(unpacked(content), int(content["images"]), int(content["fooled"]))


@dataclass(frozen=True)
class Shared(Attack):
    """An attack that puts one change into every image; until it is made, the change is the start of the search for it."""

    climb: Gradient
    batch: int
    made: Made | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= 10_000:
            raise UsageError(f"steps on {self.batch} images are too small or too large: use a batch of 1 to 10000")

    # What kinds of changes differ in.

    def blank(self, x: Tensor) -> Tensor:
        """(1, C, H, W) the grey image that stands for no change yet."""
        return torch.full_like(x[:1], GREY)

    def put(self, image: Tensor, x: Tensor, y: Tensor, victim: Attackable, rng: SampleRng) -> tuple[Tensor, ...]:
        """The images with the change in them, once for every attempt; differentiable in the change."""
        raise NotImplementedError

    # Once per job.

    @property
    def traits(self) -> Traits:
        return Traits(calibration="required")

    @property
    def parts(self) -> tuple[Attack, ...]:
        return (self.climb,)

    def with_parts(self, parts: Any) -> Self:
        (climb,) = parts
        return replace(self, climb=climb)

    def with_loss(self, loss: AnyLoss) -> Self:
        return replace(self, climb=self.climb.with_loss(loss))

    def prepare(self, victim: Attackable, calibration: Calibration, *, rng: SampleRng) -> Self:
        """Make the change on the calibration images that the model classifies correctly."""
        x, y = calibration()
        if len(x) == 0:
            return self
        with frozen(victim), torch.no_grad():
            right = torch.cat([is_correct(victim(x[rows]), y[rows]) for rows in self._batches(len(x))])
        x, y = x[right], y[right]
        if len(x) == 0:
            raise UsageError("the model classifies no calibration image correctly: give others by --calibration DATA")
        stream = SampleRng(rng.seed, tuple(range(len(x)))).child("universal")
        label = torch.zeros(1, dtype=torch.long, device=x.device)
        one = SampleRng(rng.seed, (0,)).child("change")
        made = self.climb(_OverImages(self, victim, x, y, stream), self.blank(x), label, rng=one).x_adv
        fooled = 0
        with frozen(victim), torch.no_grad():
            for rows in self._batches(len(x)):
                tried = self.put(made, x[rows], y[rows], victim, stream[rows].child("own"))[0]
                fooled += int((~is_correct(victim(tried), y[rows])).sum())
        return replace(self, made=Made(made, len(x), fooled))

    def _batches(self, count: int) -> Sequence[Tensor]:
        return torch.split(torch.arange(count), self.batch)

    def learned(self) -> Any:
        return None if self.made is None else self.made.plain()

    def recall(self, victim: Attackable, content: Any) -> Self:
        return replace(self, made=Made.read(content))

    # On every image.

    def price(self, query: PriceQuery) -> Price:
        return Price().more(query.look)

    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        evidence, result = blank_search(x), x.clone()
        if len(x) == 0:
            return Crafted(result, evidence)
        image = self._image(x, rng)
        active = torch.ones_like(evidence["fooled"])
        with frozen(victim), torch.no_grad():
            attempts = self.put(image, x, y, victim, rng)
            for number, tried in enumerate(in_stage("places", attempts)):
                if not bool(active.any()):
                    break
                x_adv, labels = tried[active], y[active]
                logits = victim.verdict(x_adv, victim(x_adv))
                fooled = fools(victim, x_adv, logits, labels)
                evidence["forwards"][active] += victim.look + claim_draws(victim, logits, labels)
                evidence["margin"][active] = torch.maximum(evidence["margin"][active], logit_margin(logits, labels))
                result[active] = x_adv
                rows = active.nonzero().flatten()[fooled]
                evidence["fooled"][rows], evidence["first_fooled"][rows] = True, number
                active = active & ~evidence["fooled"]
        del evidence["zero_grad"]
        return Crafted(result, evidence)

    def _image(self, x: Tensor, rng: SampleRng) -> Tensor:
        if self.made is not None:
            return self.made.image.to(x)
        return self.climb.ball.random(self.blank(x), SampleRng(rng.seed, (0,)).child("change").child("start"))

    def report(self, run: Run) -> tuple[Section, ...]:
        made = (run.learned or {}).get("learned")
        if not isinstance(made, dict) or "float32" not in made:
            return ()
        content = {name: made[name] for name in ("shape", "images", "fooled")}
        share = f"{100 * made['fooled'] / made['images']:.1f} %"
        note = (
            f"one change for all images, kept in learned.json; it fools {share} of the {made['images']} it was made on"
        )
        return (Section("universal", content, notes=(note,)),)


class _OverImages(Attackable):
    """A model from the change to its logits on a new batch of images at every call, all with the true class first."""

    def __init__(self, attack: Shared, victim: Attackable, x: Tensor, y: Tensor, rng: SampleRng) -> None:
        super().__init__()
        self.attack, self.victim, self.x, self.y, self.rng = attack, victim, x, y, rng
        self.num_classes = victim.num_classes
        self.answers = min(attack.batch, len(x))
        self.calls = 0

    def forward(self, image: Tensor) -> Tensor:
        """(1, C, H, W) -> (images, 1, classes)."""
        step = self.rng.child("step", self.calls)
        self.calls += 1
        order = step.child("order").generator(0).permutation(len(self.x))[: self.answers]
        rows = torch.from_numpy(order).to(image.device)
        x, y = self.x[rows], self.y[rows]
        logits = self.victim(self.attack.put(image, x, y, self.victim, step[rows])[0])
        classes = torch.arange(logits.shape[1], device=logits.device).expand_as(logits).clone()
        classes.scatter_(1, y[:, None], 0)  # the first class where the true one was
        classes[:, 0] = y
        reordered: Tensor = logits.gather(1, classes)[:, None]
        return reordered

    def verdict(self, x: Tensor, logits: Tensor) -> Tensor:
        return logits.mean(0)
