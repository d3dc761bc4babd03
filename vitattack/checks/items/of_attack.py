"""Checks of attacks against each other: what is weaker by design must not break what `auto` left."""

from __future__ import annotations

from itertools import pairwise

from vitattack.checks.item import Item
from vitattack.checks.subject import Subject

SHORT, LONG = "pgd(steps=20)", "pgd(steps=100)"
NOISE, BLACK_BOX = "random(tries=32)", "square(queries=1000)"
LOSSES = ("ce", "margin", "dlr")
WEAK_LOSS = 0.1  # of the images: a loss that breaks so many fewer than the best one is saturated
EPS_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
SCALING = "aas(pgd(steps=20), restarts=1, keep=1)"
SCALING_CONTROL = "random_scales(pgd(steps=20), restarts=1, keep=1)"
CARLINI, ATHALYE = "Carlini et al. 2019", "Athalye et al., ICML 2018"
UNDEFENDED = "tiny-vit-standard"


def _beyond(subject: Subject, name: str, asks: str, attack: str, source: str) -> Item:
    """Does an attack that is weaker by design, or slower, break an image that `auto` left?"""
    broken = subject.broken(attack)
    beyond = broken - subject.fell_to_auto
    return Item(
        name,
        asks,
        f"{len(beyond)} more than auto ({len(broken)} of {len(subject.rows)} broken)",
        "none",
        source,
        not beyond,
        decisive=True,
        next=subject.next(f"worst(auto, {attack})"),
    )


def black_box(subject: Subject) -> Item:
    asks = "Does Square, which sees logits alone, break what auto left?"
    return _beyond(subject, "black box", asks, BLACK_BOX, "AutoAttack's flag; " + CARLINI)


def random_direction(subject: Subject) -> Item:
    asks = "Does noise break what auto left?"
    return _beyond(subject, "random noise", asks, NOISE, ATHALYE)


def more_steps(subject: Subject) -> Item:
    asks = "Do 100 steps of PGD break what auto left?"
    return _beyond(subject, "more steps", asks, LONG, CARLINI)


def restarts(subject: Subject) -> Item:
    asks = "Do five restarts of PGD break what auto left?"
    return _beyond(subject, "restarts", asks, f"restarts(5, {SHORT})", CARLINI)


def double_precision(subject: Subject) -> Item:
    asks = "Do gradients in fp64 break what auto left?"
    return _beyond(subject, "fp64", asks, f"fp64({SHORT})", "rounding alone must not hide examples")


def transfer(subject: Subject) -> Item:
    asks = "Do examples for an undefended model break what auto left?"
    victim = subject.victim
    if (victim.num_classes, victim.input_size, victim.channels) != (10, 32, 3) or subject.ball.norm != "linf":
        return Item("transfer", asks, "no source model for these classes", "none", CARLINI, None)
    return _beyond(subject, "transfer", asks, f'transfer("{UNDEFENDED}", {SHORT})', CARLINI)


def attention_scaling(subject: Subject) -> Item:
    """Learned scales beside random ones, which show how much is due to the search."""
    asks = "Do examples through scaled attention, learned or random, break what auto left?"
    source = "Adaptive Attention Scaling, CVPR 2024"
    item = Item(
        "attention scaling", asks, "", "none", source, None, decisive=True, next=subject.next("aas(worst(pgd, gama))")
    )
    if not subject.has_attention:
        return item._replace(figure="no attention to scale")
    if not subject.can_calibrate:
        return item._replace(figure="no other images to learn scales from")
    learned, control = subject.broken(SCALING), subject.broken(SCALING_CONTROL)
    beyond = (learned | control) - subject.fell_to_auto
    return item._replace(
        figure=f"{len(beyond)} more than auto ({len(learned)} broken, {len(control)} by random scales)",
        passed=not beyond,
    )


def one_step(subject: Subject) -> Item:
    one, many = len(subject.broken("fgsm")), len(subject.broken(SHORT))
    return Item(
        "one step",
        "Does one step break more than twenty?",
        f"{one} against {many}",
        "no",
        ATHALYE,
        one <= many,
        decisive=True,
        next=subject.next("auto"),
    )


def losses(subject: Subject) -> Item:
    broken = {loss: len(subject.broken(f"pgd(steps=20, loss={loss})")) for loss in LOSSES}
    gap = (max(broken.values()) - broken["ce"]) / max(1, len(subject.rows))
    return Item(
        "losses",
        "Does cross-entropy break as many as margin and DLR?",
        ", ".join(f"{loss} {count}" for loss, count in broken.items()),
        f"at most {WEAK_LOSS:.0%} fewer",
        "Croce & Hein, ICML 2020",
        gap <= WEAK_LOSS,
        next=subject.next("pgd(loss=margin)"),
    )


def budgets(subject: Subject) -> Item:
    """Robust accuracy falls with the budget and reaches zero without one."""
    whole = 1.0 if subject.ball.norm == "linf" else 50.0
    sizes = [*(factor * subject.ball.eps for factor in EPS_FACTORS), whole]
    sizes = sorted({min(size, whole) for size in sizes})
    left = [len(subject.rows) - len(subject.broken(SHORT, subject.at(size))) for size in sizes]
    falls = all(later <= earlier for earlier, later in pairwise(left))
    return Item(
        "budgets",
        "Does accuracy fall with the budget, and to zero without one?",
        " ".join(map(str, left)) + f" of {len(subject.rows)} left",
        "falling to 0",
        CARLINI + "; unconstrained failure, Pintor et al., NeurIPS 2022",
        falls and left[-1] == 0,
        decisive=True,
        next=subject.next("pgd"),
    )
