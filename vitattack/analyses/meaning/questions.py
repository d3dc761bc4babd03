"""Questions about the meaning of perturbations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vitattack.analyses.base import Analysis, at_least
from vitattack.core.errors import UsageError


@dataclass(frozen=True)
class Semantic(Analysis):
    """Perturbations as images, classified by other models: how often as the class that they evade.

    PGD perturbs every image; (delta + eps) / (2 eps) and its negative (-delta + eps) / (2 eps), each rounded to 8 bits, go to
    the judges, without any to the other models that are named. Only the negative points towards the class that is evaded. Name
    a model that is not robust beside the others, as a control. top: among how many first classes, without it 5 of a hundred
    classes and more, 1 of fewer.
    """

    work: ClassVar[str] = "vitattack.analyses.meaning.semantic:semantic"
    paper: ClassVar[str] = "Debenedetti et al. 2023, Table VIII"
    threat: ClassVar[str | None] = "linf:8/255"
    images: ClassVar[int | None] = 100

    judges: tuple[str, ...] = ()
    steps: int = 100
    top: int | None = None
    pictures: int = 6

    def __post_init__(self) -> None:
        at_least("semantic", "steps", self.steps, 1)
        at_least("semantic", "pictures", self.pictures, 0)
        if self.top is not None:
            at_least("semantic", "top", self.top, 1)
        if len(set(self.judges)) < len(self.judges):
            raise UsageError("a judge is named twice: name each once")


@dataclass(frozen=True)
class Features(Analysis):
    """Images made of noise by targeted attacks: what a class looks like to a model, and whether other models see it.

    From uniform noise, steps of 1.5 eps/n towards the cross-entropy of one class within the budget around the noise. Their
    numbers are the model's own confidence, and the share that each other model named puts into the class.
    """

    work: ClassVar[str] = "vitattack.analyses.meaning.features:features"
    paper: ClassVar[str] = "Debenedetti et al. 2023, App. J, Fig. 18"
    threat: ClassVar[str | None] = "l2:15"
    images: ClassVar[int | None] = 1  # tells the classes and the size, no more

    steps: int = 100
    classes: tuple[int, ...] = ()  # without any, the first ten
    seeds: int = 4  # images of each class; one is drawn

    def __post_init__(self) -> None:
        at_least("features", "steps", self.steps, 1)
        at_least("features", "seeds", self.seeds, 1)
        if len(set(self.classes)) < len(self.classes) or any(each < 0 for each in self.classes):
            raise UsageError("classes are numbers from 0 on, each named once: write classes=0,3,7")
