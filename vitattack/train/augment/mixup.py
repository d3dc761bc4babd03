"""MixUp with CutMix, by timm."""

from __future__ import annotations

from dataclasses import dataclass, replace

from timm.data.mixup import Mixup as TimmMixup
from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.core.rng import seeded
from vitattack.train.data.batch import BatchRng, as_float


@dataclass(frozen=True)
class MixUp:
    """Blend a share of the batches with their own reverse by MixUp or CutMix; labels become probabilities of `classes`.

    Zhang et al., ICLR 2018; Yun et al., ICCV 2019. Each process mixes its own shard of a batch.
    """

    classes: int = 10
    mixup: float = 0.8
    cutmix: float = 1.0
    share: float = 1.0
    switch: float = 0.5  # probability of CutMix where both are on

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise UsageError(f"mixup(classes={self.classes}): give the number of classes of the data")
        if min(self.mixup, self.cutmix) < 0 or self.mixup == self.cutmix == 0:
            raise UsageError("mixup needs a positive mixup or cutmix, as in mixup(mixup=0.8, cutmix=1.0)")
        if not (0 <= self.share <= 1 and 0 <= self.switch <= 1):
            raise UsageError("share and switch of mixup are shares of the batches: use numbers from 0 to 1")

    def __call__(self, x: Tensor, y: Tensor, rng: BatchRng) -> tuple[Tensor, Tensor]:
        if y.dim() != 1:
            raise UsageError("mixup was given labels that are mixed already: use it once")
        if len(x) % 2:
            raise UsageError(f"mixup pairs images and was given {len(x)}: use an even batch size")
        if int(y.max()) >= self.classes:
            raise UsageError(f"mixup(classes={self.classes}) was given class {int(y.max())}: correct it")
        mix = TimmMixup(  # type: ignore[no-untyped-call]
            self.mixup,
            self.cutmix,
            prob=self.share,
            switch_prob=self.switch,
            label_smoothing=0,
            num_classes=self.classes,
        )
        # One draw for all processes: the seed must not depend on which rows this one has.
        with seeded(replace(rng.child("mixup"), index=())):
            mixed, target = mix(as_float(x).clone(), y)
        return mixed, target.float()
