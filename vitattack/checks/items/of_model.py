"""Checks of the model: is it deterministic, is it the declared one, does anything in it hide gradients by its design?"""

from __future__ import annotations

import torch

from vitattack.checks.item import Item
from vitattack.checks.subject import Subject
from vitattack.core.errors import VitattackError
from vitattack.core.percent import percent
from vitattack.diagnostics.diagnose import diagnose
from vitattack.evaluation.chance import at_chance
from vitattack.evaluation.random_models import recognised
from vitattack.models.victim import frozen
from vitattack.records import stats

SOFTMAX_IMAGES = 16


def determinism(subject: Subject) -> Item:
    x, _ = subject.few
    setup = subject.prepared.setup
    found = recognised(subject.victim, x, setup.seed, setup.batch_size)
    return Item(
        "determinism",
        f"Do repeated forwards of {len(x)} images agree, in batches of any size?",
        "they agree" if found.cause == "nothing" else f"differ by {found.gap:.2g}, by {found.cause}",
        "they agree",
        "AutoAttack's flag for random models",
        found.cause == "nothing",
        decisive=True,
        next=subject.next("eot(apgd)"),
    )


def clean_accuracy(subject: Subject) -> Item:
    found, declared = subject.auto.clean, subject.prepared.expected_clean
    passed, threshold = not at_chance(subject.auto.records, subject.victim.num_classes), "above chance"
    if passed and declared is not None:
        passed, threshold = (
            stats.gap(found, declared.accuracy, declared.n).inside,
            f"{percent(declared.accuracy)} declared",
        )
    return Item(
        "clean accuracy",
        "Is the clean accuracy no guess, and the declared one?",
        percent(found.accuracy),
        threshold,
        "Wilson and Newcombe intervals, 95 %",
        passed,
        decisive=True,
        next=f"vitattack models check {subject.auto.job.model}",
    )


def input_range(subject: Subject) -> Item:
    x, _ = subject.few
    low, high = float(x.min()), float(x.max())
    return Item(
        "input range",
        "Do the images fill the box [0,1] in which budgets are counted?",
        f"{low:.2f} to {high:.2f}",
        "in [0,1], over half of it",
        "the rule of RobustBench",
        high - low > 0.5,
    )


def train_mode(subject: Subject) -> Item:
    x, y = subject.few
    with frozen(subject.victim), torch.no_grad():
        usual = subject.victim(x).argmax(1)
    changed = int((usual != _in_train_mode(subject)).sum())
    return Item(
        "train mode",
        "Does train mode change predictions (dropout, batch statistics)?",
        f"{changed} of {len(y)}",
        "none",
        "others may have evaluated in it",
        changed == 0,
    )


def _in_train_mode(subject: Subject) -> torch.Tensor:
    """Predictions in train mode; modes, statistics of batch norms and the global generator are as before afterwards."""
    x, _ = subject.few
    resting = [module for module in subject.victim.modules() if not module.training]
    kept = {name: tensor.clone() for name, tensor in subject.victim.named_buffers()}
    try:
        subject.victim.train()
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(0)
            predictions: torch.Tensor = subject.victim(x).argmax(1)
            return predictions
    finally:
        for module in resting:
            module.training = False
        for name, tensor in subject.victim.named_buffers():
            tensor.copy_(kept[name])


def attention_softmax(subject: Subject) -> Item:
    x, y = subject.few
    item = Item(
        "attention softmax",
        "Does it saturate or underflow, so that fp32 loses gradients?",
        "",
        "neither",
        "Adaptive Attention Scaling, CVPR 2024",
        None,
        next=subject.auto.job.next_diagnosis.removeprefix("next: "),
    )
    try:
        found = diagnose(subject.victim, (x, y), limit=SOFTMAX_IMAGES, gradient_images=8)
    except VitattackError as error:
        return item._replace(figure=f"not diagnosed: {error}".partition(":")[0] + ", no attention seen")
    flagged = f"{found.verdict}, {len(found.flagged)} of {len(found.blocks)} blocks"
    return item._replace(figure="neither" if found.verdict == "ok" else flagged, passed=found.verdict == "ok")
