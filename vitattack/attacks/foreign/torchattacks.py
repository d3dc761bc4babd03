"""Any attack of the torchattacks package by its name, behind our fence and judged by us."""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitattack.attacks.base import Crafted, InBall, blank_evidence
from vitattack.attacks.catalogue import catalogued
from vitattack.attacks.foreign.sandbox import fenced, judged, quiet
from vitattack.attacks.losses import AnyLoss
from vitattack.core.errors import UsageError, WrongThreat
from vitattack.core.registry import did_you_mean
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.threats.lp import LpBall

Options = tuple[tuple[str, float | int | str | bool], ...]

# Classes that are not what their name says, or that no pair of image and label is enough for.
REFUSED = {
    "AutoAttack": "makes 10 steps where AutoAttack makes 100: use autoattack, or autoattack_ref for the authors' code",
    "CW": "is not the attack of Carlini and Wagner (it never searches its constant, and breaks at pixels of 0 or 1): "
    "use cw_l2",
    "MultiAttack": "takes attacks: write worst(torchattacks('PGD'), torchattacks('FAB'))",
    "LGV": "trains copies of the model on a training set: use transfer from models that were trained before",
    "VANILA": "returns the image as it is: the clean accuracy is in every result",
}
# Steps of their papers; the classes make 10 unless told.
PAPER_STEPS = {"APGD": 100, "APGDT": 100, "FAB": 100}
LEAST_CLASSES = {"APGDT": 4}  # its loss looks at the four largest logits
BUDGETS = ("eps", "max_epsilon", "norm")
NORMS = {"linf": "Linf", "l2": "L2"}


def library() -> Any:
    try:
        with quiet():
            return importlib.import_module("torchattacks")
    except ModuleNotFoundError as error:
        if error.name == "torchattacks":
            raise UsageError("torchattacks is missing: pip install --no-deps torchattacks") from None
        raise UsageError(f"torchattacks needs {error.name}, which is missing: pip install {error.name}") from None


def class_of(name: str) -> type:
    """The class, unless it is one that must not be run under its name."""
    found = library()
    if name in REFUSED:
        raise UsageError(f"torchattacks.{name} {REFUSED[name]}")
    if name not in found.__all__:
        raise UsageError(did_you_mean("class of torchattacks", name, set(found.__all__) - REFUSED.keys()))
    kind: type = getattr(found, name)
    if not norms(kind):
        raise UsageError(
            f"torchattacks.{name} counts {_distance(kind)}, which no threat here does: take a class for linf or l2"
        )
    return kind


def norms(kind: type) -> tuple[str, ...]:
    """The norms a class is made for, as its documentation says; noise that names none is tried under any."""
    distance = _distance(kind)
    return tuple(norm for norm in NORMS if not distance or norm in distance.lower())


def _distance(kind: type) -> str:
    found = re.search(r"Distance Measure\s*:\s*(.+)", kind.__doc__ or "")
    return found.group(1).strip() if found else ""


def parameters(kind: type) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(kind).parameters)


@dataclass(frozen=True)
class TorchAttack(InBall):
    """Builds the class for each batch, with the budget of the threat and a seed of ours.

    Candidates outside the budget are replaced by the image itself and never count; evidence `outside` marks them.
    """

    ball: LpBall
    name: str
    options: Options

    def __post_init__(self) -> None:
        kind = class_of(self.name)
        if self.ball.norm not in norms(kind):
            fits = " or ".join({"linf": "linf:8/255", "l2": "l2:0.5"}[norm] for norm in norms(kind))
            raise WrongThreat(
                f"torchattacks.{self.name} is not defined for {self.ball.norm} threats: use --threat {fits}"
            )
        known = parameters(kind)
        for key, value in self.options:
            if key in BUDGETS:
                raise UsageError(f"{key} of torchattacks.{self.name} is the threat's: use --threat {self.ball}")
            if key == "seed":
                raise UsageError(f"the seed of torchattacks.{self.name} comes from the run: use --seed")
            free = known.keys() - {*BUDGETS, "model", "seed", "verbose"}
            if key not in free:
                raise UsageError(did_you_mean(f"option of torchattacks.{self.name}", key, free))
            wanted = _wanted(known[key].default)
            if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
                example = known[key].default
                raise UsageError(f"torchattacks.{self.name}({key}=...) takes values like {example!r}, not {value!r}")

    def with_loss(self, loss: AnyLoss) -> TorchAttack:
        raise UsageError(f"torchattacks.{self.name} has a loss of its own: use pgd for another loss")

    def doubts(self) -> tuple[str, ...]:
        known = parameters(class_of(self.name))
        settings = {key: parameter.default for key, parameter in known.items()} | dict(self.options)
        found = []
        if not {"eps", "max_epsilon"} & known.keys():
            found.append(
                f"torchattacks.{self.name} knows no budget: samples whose candidate lies outside count as robust"
            )
        usual = PAPER_STEPS.get(self.name, 0)
        if settings.get("steps", usual) < usual:
            found.append(f"torchattacks.{self.name} made {settings['steps']} steps, its paper makes {usual}")
        if {"steps", "alpha", "eps"} <= settings.keys() and settings["steps"] * settings["alpha"] < self.ball.eps:
            reach = settings["steps"] * settings["alpha"] / self.ball.eps
            found.append(f"torchattacks.{self.name} reaches only {reach:.2f} eps from its start: raise alpha or steps")
        return tuple(found)

    @torch.enable_grad()  # callers may sit in no_grad
    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        evidence = blank_evidence(x)
        evidence["outside"] = torch.zeros_like(evidence["fooled"])
        if len(x) == 0:
            return Crafted(x.clone(), evidence)
        with fenced(f"torchattacks.{self.name}", victim, x, rng) as inside:
            single = x.detach().float()
            kind = class_of(self.name)
            known = parameters(kind)
            settings: dict[str, Any] = {"eps": self.ball.eps, "max_epsilon": self.ball.eps, "seed": inside.seed}
            settings["norm"] = NORMS[self.ball.norm]
            if "n_classes" in known:
                with torch.no_grad():
                    classes = inside.model(single[:1]).shape[1]
                if classes < LEAST_CLASSES.get(self.name, 2):
                    raise UsageError(
                        f"torchattacks.{self.name} needs at least {LEAST_CLASSES[self.name]} classes, "
                        f"the model has {classes}: use another class"
                    )
                # targets are the 9 classes closest to the prediction, or as many as there are
                settings["n_classes"] = min(10, classes)
            settings = {key: value for key, value in settings.items() if key in known} | dict(self.options)
            attack = kind(inside.model, **settings)
            attack.set_device(x.device)
            found = attack(single, y.clone())
        evidence |= inside.shares(x)
        seen = judged(victim, self.ball, x, y, found)
        evidence["forwards"] += victim.look
        evidence["fooled"], evidence["outside"] = seen.fooled, seen.outside
        return Crafted(seen.x_adv, evidence)


def _wanted(default: Any) -> tuple[type, ...]:
    """The types an option may have, told from its default."""
    for kinds in ((bool,), (int, float), (str,)):
        if isinstance(default, kinds):
            return kinds
    return (bool, int, float, str)


@catalogued(
    paper="Kim, torchattacks, 2020; the paper of each class is in its documentation",
    quick="torchattacks('APGD', steps=3)",
    foreign=True,
)
def torchattacks(ball: LpBall, name: str, **options: float | int | str | bool) -> TorchAttack:
    """A class of the package torchattacks with its own options: torchattacks('MIFGSM', steps=10, alpha=2/255).

    eps, norm and seed come from the run; everything else keeps the default of the class unless given. All rows of a
    batch share a seed, so results depend on the batch size. AutoAttack and CW are refused: they are not what they say.
    """
    return TorchAttack(ball, name, tuple(sorted(options.items())))
