"""Attacks made of attacks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tests.conftest import tiny_vit, toy_pictures
from vitattack.attacks import attack_text
from vitattack.attacks.base import Attack, Crafted, Wrapper, recall_attack
from vitattack.attacks.compose import Stages
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.models.passes import counting_passes
from vitattack.models.victim import Victim
from vitattack.threats.lp import LpBall

BALL = LpBall("linf", 0.004)
Images = tuple[Tensor, Tensor]


def fooled(text: str, images: Images) -> Tensor:
    x, y = images
    victim = tiny_vit()
    crafted = attack_text.build(text, BALL)(victim, x, y, rng=SampleRng(0, tuple(range(len(x)))))
    return victim(crafted.x_adv).argmax(1) != y


def test_worst_is_the_union_of_separate_runs(toy_images: Images) -> None:
    parts = ["fgsm", "pgd(steps=5)", "gama(steps=8)"]
    union = torch.stack([fooled(part, toy_images) for part in parts]).any(0)
    assert 0 < int(union.sum()) < len(union)  # a budget at which something is decided
    assert torch.equal(fooled(f"worst({', '.join(parts)})", toy_images), union)


def test_restarts_only_add_successes_and_the_first_is_the_plain_attack(toy_images: Images) -> None:
    plain = fooled("pgd(steps=2)", toy_images)
    one = fooled("restarts(1, pgd(steps=2))", toy_images)
    many = fooled("restarts(6, pgd(steps=2))", toy_images)
    assert torch.equal(plain, one)
    assert not bool((plain & ~many).any())
    assert int(many.sum()) > int(plain.sum())


def test_the_stage_that_broke_a_sample_is_named(toy_images: Images, toy: Victim) -> None:
    x, y = toy_images
    rng = SampleRng(0, tuple(range(len(x))))
    evidence = attack_text.build("worst(fgsm, pgd(steps=5))", BALL)(toy, x, y, rng=rng).evidence
    alone = fooled("fgsm", toy_images)
    assert torch.equal(evidence["stage"] == 0, alone)
    assert torch.equal(evidence["stage"] >= 0, evidence["fooled"])


def test_an_unconfirmed_success_keeps_its_sample_under_attack(toy_images: Images, toy: Victim) -> None:
    """A stage whose claims do not hold on a second look must not take samples out of the run."""
    x, y = toy_images

    class Boaster(Attack):
        def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
            honest = attack_text.build("fgsm", LpBall("linf", 0.0))(victim, x, y, rng=rng)
            return honest._replace(evidence={**honest.evidence, "fooled": torch.ones(len(x), dtype=torch.bool)})

    pgd = attack_text.build("pgd(steps=5)", BALL)
    crafted = Stages((Boaster(), pgd))(toy, x, y, rng=SampleRng(0, tuple(range(len(x)))))
    assert torch.equal(crafted.evidence["fooled"], fooled("pgd(steps=5)", toy_images))


def test_losses_are_passed_inwards() -> None:
    from vitattack.attacks.losses.plain import Margin

    changed = attack_text.build("worst(pgd, restarts(2, mim))", BALL).with_loss(Margin())
    assert changed == attack_text.build("worst(pgd(loss=margin), restarts(2, mim(loss=margin)))", BALL)


def test_what_makes_all_its_steps_is_looked_at_before_the_next_stage(toy_images: Images) -> None:
    """Such an attack claims nothing; its successes must not be overwritten by those who come after."""
    plain = fooled("pgd(steps=5, stop=never)", toy_images)
    assert bool(plain.any())
    for text in ("worst({}, random)", "restarts(3, {})", "worst(worst({}), random)"):
        x, y = toy_images
        victim = tiny_vit()
        with counting_passes(victim) as passes:
            crafted = attack_text.build(text.format("pgd(steps=5, stop=never)"), BALL)(
                victim, x, y, rng=SampleRng(0, tuple(range(len(x))))
            )
        found = victim(crafted.x_adv).argmax(1) != y
        assert not bool((plain & ~found).any())
        assert torch.equal(crafted.evidence["fooled"], found)
        assert passes.forwards == int(crafted.evidence["forwards"].sum())


def test_restarts_draw_afresh_through_whatever_holds_them() -> None:
    paths = []

    class Probe(Attack):
        def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
            paths.append(rng.path)
            return attack_text.build("random", LpBall("linf", 0.0))(victim, x, y, rng=rng)

    @dataclass(frozen=True)
    class Held(Wrapper):
        inner: Stages

        def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
            return self.inner(victim, x, y, rng=rng)

    held = Held(Stages((Probe(), Probe()), fresh=True))
    x = toy_pictures(2)
    victim = tiny_vit()
    Stages((held, held), fresh=True)(victim, x, victim(x).argmax(1), rng=SampleRng(0, (0, 1)))
    assert len(paths) == len(set(paths)) == 4


def test_doubts_that_hang_on_the_victim_survive_a_resume(toy: Victim) -> None:
    """On resume what was learned is recalled; attacks beside it that learn nothing still look at the victim."""
    attack = attack_text.build(
        "worst(targets(pgd, k=12), scale_search(pgd(steps=2), calibration=4, grid=(1, 0.5)))", BALL
    )
    x = toy_pictures(4)
    ready = attack.prepare(toy, lambda: (x, toy(x).argmax(1)), rng=SampleRng(0, (0,)))
    assert any("12 targets were asked for" in doubt for doubt in ready.doubts())
    assert recall_attack(attack, toy, ready.learned()).doubts() == ready.doubts()


def test_what_one_stage_saw_stays_seen(toy: Victim) -> None:
    """A stage without a gradient beside one that has some: the flat one is in the evidence wherever it stood."""
    x = toy_pictures(4)
    with torch.no_grad():
        y = toy(x).argmax(1)
    tiny = LpBall("linf", 1e-6)
    for text in (
        "worst(pgd(loss=margin(kappa=-1000000000), steps=1), pgd(steps=1))",
        "worst(pgd(steps=1), mim(steps=1))",
    ):
        evidence = attack_text.build(text, tiny)(toy, x, y, rng=SampleRng(0, (0, 1, 2, 3))).evidence
        assert evidence["zero_grad"].tolist() == ["kappa" in text] * 4


def test_the_smaller_distance_of_two_stages_is_kept(toy_images: Images, toy: Victim) -> None:
    x, y = toy_images
    ball, rng = LpBall("l2", 0.01), SampleRng(0, tuple(range(len(x))))

    def distance(text: str) -> Tensor:
        return attack_text.build(text, ball)(toy, x, y, rng=rng).evidence["distance"]

    one, two = "fab(steps=10)", "cw_l2(searches=1, steps=20)"
    smaller = torch.minimum(distance(one), distance(two))
    assert bool((distance(one) < distance(two)).any())
    for text in (f"worst({one}, {two})", f"worst({two}, {one})", f"worst({one}, pgd(steps=1), {two}, fgsm)"):
        assert torch.equal(distance(text), smaller), text
