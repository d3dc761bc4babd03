"""Minimum-norm attacks of adv-lib, foolbox, torchattacks and ART, each with settings that spend at most a number of passes."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from vitattack.models.victim import Victim

Craft = Callable[[Victim, Tensor, Tensor], Tensor]
ORDER = {"linf": float("inf"), "l2": 2, "l1": 1, "l0": 0}
SEARCHES = 5  # bisections of a penalty's weight, where an attack has one
CLASSES = 10
MANY = 1000  # passes from which attacks that search for a weight, or weigh by a dual variable, are worth a row


def crafts(norm: str, passes: int, wanted: list[str]) -> Iterator[tuple[str, Craft]]:
    """The attacks of the wanted libraries for a norm; a library that is missing is named in a line and left out."""
    for library in wanted:
        package, attacks = LIBRARIES[library]
        if find_spec(package) is None:
            print(f"{library} is not installed (pip install {library}): its attacks are left out", file=sys.stderr)
            continue
        for name, craft in attacks(norm, passes):
            yield f"{library} {name}", craft


def of_adv_lib(norm: str, passes: int) -> Iterator[tuple[str, Craft]]:
    """Its logger wants visdom, which nothing here draws with."""
    sys.modules.setdefault("visdom", types.ModuleType("visdom"))
    from adv_lib import attacks

    def found(function: Callable[..., Tensor], **settings: Any) -> Craft:
        return lambda victim, x, y: function(victim, x.clone(), y, **settings).detach()

    steps, order, many = passes // 2, ORDER[norm], passes >= MANY
    yield "fmn", found(attacks.fmn, norm=order, steps=steps)
    if norm == "l2":
        yield "ddn", found(attacks.ddn, steps=steps, levels=None)
    if norm == "l2" and many:
        yield "pdgd", found(attacks.pdgd, num_steps=steps)
        weighed = {"binary_search_steps": SEARCHES, "max_iterations": steps // SEARCHES, "initial_const": 1.0}
        yield "cw", found(attacks.carlini_wagner_l2, **weighed)
    if norm == "l2" or (norm == "l1" and many):
        yield "alma", found(attacks.alma, distance=norm, num_steps=steps)
    if norm in ("linf", "l1") and many:
        yield "pdpgd", found(attacks.pdpgd, norm=order, num_steps=steps)
    if norm in ("linf", "l2"):
        yield "deepfool", found(attacks.df, norm=order, steps=min(50, passes // 10))
    if norm == "linf" or (norm == "l2" and many):  # in l2 it finds hardly anything with 200
        yield "tr", found(attacks.tr, p=order, iter=(passes - 11) // 4, adaptive=True, worst_case=many)
    if norm == "l0":
        yield "sigma-zero", found(attacks.sigma_zero, num_steps=steps)
    if norm != "l0" and many:
        yield "fab", found(attacks.fab, norm=order, n_iter=passes // 12)


def of_foolbox(norm: str, passes: int) -> Iterator[tuple[str, Craft]]:
    import foolbox
    from foolbox import attacks

    steps, one = passes // 2, passes // 2 // SEARCHES
    kinds = {
        "linf": attacks.LInfFMNAttack,
        "l2": attacks.L2FMNAttack,
        "l1": attacks.L1FMNAttack,
        "l0": attacks.L0FMNAttack,
    }
    found: dict[str, Any] = {"fmn": kinds[norm](steps=steps)}
    if norm == "l2":
        found["ddn"] = attacks.DDNAttack(steps=steps)
    if norm == "l2" and passes >= MANY:
        found["cw"] = attacks.L2CarliniWagnerAttack(SEARCHES, one, initial_const=1.0)
    if norm == "l1" and passes >= MANY:
        found["ead"] = attacks.EADAttack(SEARCHES, passes // 3 // SEARCHES, initial_const=1.0, decision_rule="L1")

    def craft(attack: Any, victim: Victim, x: Tensor, y: Tensor) -> Tensor:
        _, candidates, _ = attack(foolbox.PyTorchModel(victim, bounds=(0, 1), device="cpu"), x, y, epsilons=None)
        return torch.as_tensor(candidates)

    yield from ((name, partial(craft, attack)) for name, attack in found.items())


def of_torchattacks(norm: str, passes: int) -> Iterator[tuple[str, Craft]]:
    import torchattacks

    one = passes // 3 // SEARCHES
    kinds: dict[str, Callable[[Victim], Any]] = {}
    if norm == "l2":
        kinds["cw"] = lambda victim: torchattacks.CW(victim, steps=passes // 2)
    if norm in ("linf", "l2") and passes >= MANY:
        kinds["fab"] = lambda victim: torchattacks.FAB(
            victim, norm={"linf": "Linf", "l2": "L2"}[norm], eps=1e6, steps=passes // 12, n_classes=CLASSES
        )
    if norm == "l1":
        kinds["ead"] = lambda victim: torchattacks.EADL1(victim, binary_search_steps=SEARCHES, max_iterations=one)
    yield from ((name, lambda victim, x, y, make=make: make(victim)(x, y).detach()) for name, make in kinds.items())


def of_art(norm: str, passes: int) -> Iterator[tuple[str, Craft]]:
    from art.attacks import evasion
    from art.estimators.classification import PyTorchClassifier

    kinds: dict[str, Callable[[Any], Any]] = {}
    steps = passes // 2
    if norm == "l2":
        kinds["deepfool"] = lambda model: evasion.DeepFool(
            model, min(50, passes // 20), batch_size=64, verbose=False, nb_grads=CLASSES
        )
        kinds["cw"] = lambda model: evasion.CarliniL2Method(
            model, binary_search_steps=SEARCHES, max_iter=passes // 40, initial_const=1.0, batch_size=64, verbose=False
        )
    if norm == "l1":
        kinds["ead"] = lambda model: evasion.ElasticNet(
            model,
            binary_search_steps=SEARCHES,
            max_iter=steps // 2 // SEARCHES,
            initial_const=1.0,
            batch_size=64,
            decision_rule="L1",
            verbose=False,
        )

    def craft(make: Callable[[Any], Any], victim: Victim, x: Tensor, y: Tensor) -> Tensor:
        model = PyTorchClassifier(victim, torch.nn.CrossEntropyLoss(), x.shape[1:], CLASSES, clip_values=(0.0, 1.0))
        # labels are those that the model gives, since only images that are right are attacked
        return torch.from_numpy(make(model).generate(x.numpy())).to(x)

    yield from ((name, partial(craft, make)) for name, make in kinds.items())


LIBRARIES: dict[str, tuple[str, Callable[[str, int], Iterator[tuple[str, Craft]]]]] = {
    "adv-lib": ("adv_lib", of_adv_lib),
    "foolbox": ("foolbox", of_foolbox),
    "torchattacks": ("torchattacks", of_torchattacks),
    "adversarial-robustness-toolbox": ("art", of_art),
}
