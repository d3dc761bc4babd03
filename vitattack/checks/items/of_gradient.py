"""Checks of gradients: do they exist, do they promise what happens, has the attack made use of them?"""

from __future__ import annotations

import torch
from torch import Tensor

from vitattack.attacks.base import BLIND_SHARE
from vitattack.attacks.gradient.fidelity import TRUSTED
from vitattack.attacks.losses.base import logit_margin
from vitattack.checks.item import Item
from vitattack.checks.subject import Subject
from vitattack.core.percent import percent
from vitattack.evaluation.callable_attack import attack
from vitattack.models.victim import frozen

POINTS = 100
PINTOR = "Pintor et al., NeurIPS 2022"
SHARPLY = 1.0  # relative change of the loss at random points: the cap of Pintor et al.
UNFINISHED = 0.05  # of the loss's range, gained in the last ten steps
ENDED, GOES_ON = "pgd(steps=40, loss=margin, start=clean)", "pgd(steps=50, loss=margin, start=clean)"


def fidelity(subject: Subject) -> Item:
    section = subject.auto.section("auto")
    found = None if section is None else section.content["gradient_fidelity"]
    return Item(
        "gradient fidelity",
        "Does the model do what its gradients promise?",
        "no gradient" if found is None else f"{found:.2f}",
        f"at least {TRUSTED:g}",
        "measured on honest and planted models: docs/auto.md",
        found is not None and found >= TRUSTED,
        decisive=True,
        next=subject.next("square(queries=20000)"),
    )


def zero_gradients(subject: Subject) -> Item:
    right = [r for r in subject.auto.records if r.clean == r.label]
    blind = sum(bool(r.evidence.get("zero_grad") or r.evidence.get("no_gradient")) for r in right)
    flat = sum(bool(r.evidence.get("ce_flat")) for r in right)
    return Item(
        "zero gradients",
        "Is there a gradient on every image?",
        f"none on {blind} of {len(right)}" + (f", none of cross-entropy on {flat}" if flat else ""),
        f"at most {percent(BLIND_SHARE)}",
        "AutoAttack's flag; unavailable gradients, " + PINTOR,
        blind <= BLIND_SHARE * len(right),
        decisive=True,
        next=subject.next("square(queries=20000)"),
    )


def unstable_loss(subject: Subject) -> Item:
    """The mean relative change of the loss at random points around the images, as Pintor et al. define it."""
    x, y = subject.few
    changes = []
    with frozen(subject.victim), torch.no_grad():
        here = _loss(subject, x, y)
        for number in range(POINTS):
            there = _loss(subject, subject.ball.random(x, subject.rng.child("points", number)), y)
            changes.append(((there - here).abs() / here.abs().clamp_min(1e-12)).clamp_max(SHARPLY))
    found = float(torch.stack(changes).mean())
    asks = f"How far does the loss move at {POINTS} random points of the ball?"
    return Item(
        "unstable loss", asks, f"{found:.2f}", "no threshold known, 0 to 1", PINTOR, None if found < 0.5 else False
    )


def _loss(subject: Subject, x: Tensor, y: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(subject.victim(x), y, reduction="none")


def incomplete_optimisation(subject: Subject) -> Item:
    """Whether ten more steps still raise the margin of images that stand."""
    start = _margins_at(subject, *subject.few)
    ended, gone_on = subject.margins(ENDED), subject.margins(GOES_ON)
    gained = (gone_on - ended) / (gone_on - start).abs().clamp_min(1e-12)
    standing = [row not in subject.broken(GOES_ON) for row in subject.rows]
    rising = int((gained[torch.tensor(standing)] > UNFINISHED).sum())
    return Item(
        "incomplete optimisation",
        "Do ten more steps of 40 raise the margin of survivors by over 5 %?",
        f"{rising} of {sum(standing)} survivors",
        "none",
        PINTOR,
        rising == 0,
        next=subject.next("auto(until=converged)"),
    )


def _margins_at(subject: Subject, x: Tensor, y: Tensor) -> Tensor:
    with frozen(subject.victim), torch.no_grad():
        return logit_margin(subject.victim(x), y).cpu()


def first_order(subject: Subject) -> Item:
    """FOSC at the end of PGD: how far a linear model of the loss still promises to go (Wang et al., ICML 2019)."""
    x, y = subject.few
    x_adv = attack("pgd(steps=50, loss=margin, stop=never)", threat=subject.ball)(subject.victim, x, y).x_adv
    point = torch.as_tensor(x_adv).to(x).requires_grad_()
    with frozen(subject.victim), torch.enable_grad():
        (grad,) = torch.autograd.grad(logit_margin(subject.victim(point), y).sum(), point)
    length = grad.flatten(1).abs().sum(1) if subject.ball.norm == "linf" else grad.flatten(1).norm(dim=1)
    most = (subject.ball.eps * length).clamp_min(1e-30)
    reached = ((point.detach() - x) * grad).flatten(1).sum(1)
    found = float(((most - reached) / most).median())
    return Item(
        "first-order stationarity",
        "What share of the step that gradients promise is left after 50 steps?",
        f"{found:.2f} of at most 2",
        "no threshold known, 0 is a stationary point",
        "FOSC, Wang et al., ICML 2019",
        None,
    )


def eight_bits(subject: Subject) -> Item:
    """Whether examples survive when they are saved as 8-bit images."""
    x, y = subject.few
    x_adv = torch.as_tensor(attack("pgd(steps=20)", threat=subject.ball)(subject.victim, x, y).x_adv).to(x)
    with frozen(subject.victim), torch.no_grad():
        fooled = subject.victim(x_adv).argmax(1) != y
        rounded = subject.victim((x_adv * 255).round() / 255).argmax(1) != y
    died = int((fooled & ~rounded).sum())
    return Item(
        "8-bit images",
        "Do examples still fool after rounding to 8 bits?",
        f"{died} of {int(fooled.sum())} do not",
        "at most a tenth",
        "images are saved so",
        10 * died <= int(fooled.sum()),
    )
