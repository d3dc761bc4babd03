"""Attacks of the torchattacks package by name, sandboxed and judged by us."""

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
from vitattack.attacks.foreign.sandbox import judge_candidates, quiet, sandboxed
from vitattack.attacks.losses.base import AnyLoss
from vitattack.core.errors import UsageError, WrongThreat
from vitattack.core.registry import did_you_mean
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.threats.lp import LpBall

Options = tuple[tuple[str, float | int | str | bool], ...]

# Classes that differ from the attack of their name, or that need more than images and labels.
REFUSED = {
    "AutoAttack": "makes 10 steps where AutoAttack makes 100: use autoattack, or autoattack_ref for the authors' code",
    "CW": "is not the attack of Carlini and Wagner (it never searches its constant, and breaks at pixels of 0 or 1): "
    "use cw_l2",
    "MultiAttack": "takes attacks: write worst(torchattacks('PGD'), torchattacks('FAB'))",
    "LGV": "trains copies of the model on a training set: use transfer from models that were trained before",
    "VANILA": "returns the image as it is: the clean accuracy is in every result",
}
# Steps in the papers; the classes default to 10.
PAPER_STEPS = {"APGD": 100, "APGDT": 100, "FAB": 100}
LEAST_CLASSES = {"APGDT": 4}  # its loss needs the four largest logits
BUDGETS = ("eps", "max_epsilon", "norm")
NORMS = {"linf": "Linf", "l2": "L2"}


def library() -> Any:
    """Import torchattacks, or say how to install it."""
    try:
        with quiet():
            return importlib.import_module("torchattacks")
    except ModuleNotFoundError as error:
        if error.name == "torchattacks":
            raise UsageError("torchattacks is missing: pip install --no-deps torchattacks") from None
        raise UsageError(f"torchattacks needs {error.name}, which is missing: pip install {error.name}") from None


def class_of(name: str) -> type:
    """Class of this name, unless it must not be run under it."""
    package = library()
    if name in REFUSED:
        raise UsageError(f"torchattacks.{name} {REFUSED[name]}")
    if name not in package.__all__:
        raise UsageError(did_you_mean("class of torchattacks", name, set(package.__all__) - REFUSED.keys()))
    attack_class: type = getattr(package, name)
    if not norms(attack_class):
        raise UsageError(
            f"torchattacks.{name} is bounded in {_distance(attack_class)}, which is no threat here: "
            "use a class for linf or l2"
        )
    return attack_class


def norms(attack_class: type) -> tuple[str, ...]:
    """Norms a class is made for, according to its documentation; classes that name none run under any."""
    distance = _distance(attack_class)
    return tuple(norm for norm in NORMS if not distance or norm in distance.lower())


def _distance(attack_class: type) -> str:
    match = re.search(r"Distance Measure\s*:\s*(.+)", attack_class.__doc__ or "")
    return match.group(1).strip() if match else ""


def parameters(attack_class: type) -> dict[str, inspect.Parameter]:
    """Parameters of a class by name."""
    return dict(inspect.signature(attack_class).parameters)


@dataclass(frozen=True)
class TorchAttack(InBall):
    """Instantiates the class for each batch, with the budget of the threat and a seed derived from the rows.

    Candidates outside the budget are replaced by the clean image and never count; evidence `outside` marks them.
    """

    ball: LpBall
    name: str
    options: Options

    def __post_init__(self) -> None:
        attack_class = class_of(self.name)
        if self.ball.norm not in norms(attack_class):
            fits = " or ".join({"linf": "linf:8/255", "l2": "l2:0.5"}[norm] for norm in norms(attack_class))
            raise WrongThreat(
                f"torchattacks.{self.name} is not defined for {self.ball.norm} threats: use --threat {fits}"
            )
        known = parameters(attack_class)
        for key, value in self.options:
            if key in BUDGETS:
                raise UsageError(f"{key} of torchattacks.{self.name} comes from the threat: use --threat {self.ball}")
            if key == "seed":
                raise UsageError(f"the seed of torchattacks.{self.name} comes from the run: use --seed")
            settable = known.keys() - {*BUDGETS, "model", "seed", "verbose"}
            if key not in settable:
                raise UsageError(did_you_mean(f"option of torchattacks.{self.name}", key, settable))
            types = _option_types(known[key].default)
            if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
                example = known[key].default
                raise UsageError(f"torchattacks.{self.name}({key}=...) takes values like {example!r}, not {value!r}")

    def with_loss(self, loss: AnyLoss) -> TorchAttack:
        raise UsageError(f"torchattacks.{self.name} has a loss of its own: use pgd(loss=...)")

    def doubts(self) -> tuple[str, ...]:
        known = parameters(class_of(self.name))
        settings = {key: parameter.default for key, parameter in known.items()} | dict(self.options)
        doubts = []
        if not {"eps", "max_epsilon"} & known.keys():
            doubts.append(
                f"torchattacks.{self.name} knows no budget: samples whose candidate lies outside count as robust"
            )
        paper_steps = PAPER_STEPS.get(self.name, 0)
        if settings.get("steps", paper_steps) < paper_steps:
            doubts.append(f"torchattacks.{self.name} made {settings['steps']} steps, its paper makes {paper_steps}")
        if {"steps", "alpha", "eps"} <= settings.keys() and settings["steps"] * settings["alpha"] < self.ball.eps:
            reach = settings["steps"] * settings["alpha"] / self.ball.eps
            doubts.append(f"torchattacks.{self.name} reaches only {reach:.2f} eps from its start: raise alpha or steps")
        return tuple(doubts)

    @torch.enable_grad()  # callers may sit in no_grad
    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        evidence = blank_evidence(x)
        evidence["outside"] = torch.zeros_like(evidence["fooled"])
        if len(x) == 0:
            return Crafted(x.clone(), evidence)
        with sandboxed(f"torchattacks.{self.name}", victim, x, rng) as call:
            single = x.detach().float()
            attack_class = class_of(self.name)
            known = parameters(attack_class)
            settings: dict[str, Any] = {"eps": self.ball.eps, "max_epsilon": self.ball.eps, "seed": call.seed}
            settings["norm"] = NORMS[self.ball.norm]
            if "n_classes" in known:
                with torch.no_grad():
                    classes = call.model(single[:1]).shape[1]
                if classes < LEAST_CLASSES.get(self.name, 2):
                    raise UsageError(
                        f"torchattacks.{self.name} needs at least {LEAST_CLASSES[self.name]} classes, "
                        f"the model has {classes}: use another class"
                    )
                # targets are the 9 likeliest other classes, or all of them if there are fewer
                settings["n_classes"] = min(10, classes)
            settings = {key: value for key, value in settings.items() if key in known} | dict(self.options)
            attack = attack_class(call.model, **settings)
            attack.set_device(x.device)
            candidates = attack(single, y.clone())
        evidence |= call.shares(x)
        judged = judge_candidates(victim, self.ball, x, y, candidates)
        evidence["forwards"] += victim.look
        evidence["fooled"], evidence["outside"] = judged.fooled, judged.outside
        return Crafted(judged.x_adv, evidence)


def _option_types(default: Any) -> tuple[type, ...]:
    """Types an option may have, inferred from its default."""
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
    """Any class of the torchattacks package with its own options: torchattacks('MIFGSM', steps=10, alpha=2/255).

    eps, norm and seed come from the run; other options default to those of the class. All rows of a batch share a seed,
    so results depend on the batch size. AutoAttack and CW are refused, since they differ from the attacks of that name.
    """
    return TorchAttack(ball, name, tuple(sorted(options.items())))
