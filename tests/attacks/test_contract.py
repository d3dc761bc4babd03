"""The contract of attacks: every registered one is tested, a new one by being registered."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from importlib.util import find_spec

import pytest
import torch
from _pytest.mark import ParameterSet
from torch import Tensor

from tests.conftest import batch, linear_victim, toy_pictures
from vitattack.attacks import attack_text
from vitattack.attacks.base import Attack
from vitattack.attacks.catalogue import ATTACKS, EVERY_LP
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.passes import counting_passes
from vitattack.models.victim import Victim, model_digest
from vitattack.threats.base import THREATS, Threat, parse_threat

EXAMPLES = {kind: parse_threat(THREATS[kind].example) for kind in THREATS}
Images = tuple[Tensor, Tensor]
# Attacks of other packages are skipped where the package is not installed.
PACKAGES = {"torchattacks": "torchattacks", "autoattack_ref": "pyautoattack"}
MISSING = {name: package for name, package in PACKAGES.items() if find_spec(package) is None}


def case(name: str, *values: Threat) -> ParameterSet:
    """One parameter set, skipped if the attack's package is missing."""
    skip = pytest.mark.skipif(name in MISSING, reason=f"{MISSING.get(name)} is not installed")
    return pytest.param(name, *values, marks=skip)


# Attacks that take their gradients in `prepare`.
MADE_BEFORE = ("patch_universal", "universal")
every_attack = pytest.mark.parametrize("name", [case(name) for name in ATTACKS])
# Attacks through attention refuse models without any.
ANY_MODEL = [name for name in ATTACKS if not ATTACKS[name].needs_attention]
any_model = pytest.mark.parametrize("name", [case(name) for name in ANY_MODEL])


def under_its_threats(names: Iterable[str]) -> pytest.MarkDecorator:
    """Each name with each threat that it and what its quick form holds are defined for."""
    cases = [
        case(name, threat) for name in names for threat in EXAMPLES.values() if name in MISSING or fits(name, threat)
    ]
    return pytest.mark.parametrize(("name", "threat"), cases, ids=lambda value: str(value))


def fits(name: str, threat: Threat) -> bool:
    try:
        attack_text.build(ATTACKS[name].quick, threat)
    except attack_text.WrongThreat:
        return False
    return True


def usual(name: str) -> Threat:
    return EXAMPLES[ATTACKS[name].kinds[0]]


def ready(name: str, threat: Threat, victim: Victim) -> Attack:
    """The quick form of an attack, prepared on images of its own."""
    x = toy_pictures(4, seed=17)
    attack = attack_text.build(ATTACKS[name].quick, threat)
    with torch.no_grad():
        return attack.prepare(victim, lambda: (x, victim(x).argmax(1)), rng=SampleRng(0, (0,)))


def rng(n: int, seed: int = 0) -> SampleRng:
    return SampleRng(seed, tuple(range(n)))


@under_its_threats(ATTACKS)
def test_candidates_keep_shape_type_box_and_budget(name: str, threat: Threat, toy: Victim, toy_images: Images) -> None:
    x, y = toy_images
    before = x.clone()
    crafted = ready(name, threat, toy)(toy, x, y, rng=rng(12))
    assert crafted.x_adv.shape == x.shape and crafted.x_adv.dtype == x.dtype
    assert not crafted.x_adv.requires_grad
    assert threat.allows(x, crafted.x_adv, crafted.evidence).all()
    assert torch.equal(x, before)
    assert all(len(rows) == len(x) for rows in crafted.evidence.values())


@every_attack
def test_equal_randomness_gives_equal_pixels_and_other_seeds_do_not(name: str, toy: Victim, toy_images: Images) -> None:
    attack = ready(name, usual(name), toy)
    one, two = (attack(toy, *toy_images, rng=rng(12)).x_adv for _ in range(2))
    assert torch.equal(one, two)
    if ATTACKS[name].needs_attention or ATTACKS[name].foreign:  # foreign ones may return what they like of survivors
        return

    class Flat(torch.nn.Module):
        """No gradient anywhere: an attack ends where it began."""

        def forward(self, x: Tensor) -> Tensor:
            return 0 * x.flatten(1).sum(1, keepdim=True) + torch.tensor([1.0, 0, 0, 0, 0])

    flat = Victim(Flat(), name="flat", num_classes=5, input_size=32)
    x, y = toy_images[0], torch.zeros(12, dtype=torch.long)
    one, other = (attack(flat, x, y, rng=rng(12, seed)).x_adv for seed in (0, 1))
    assert torch.equal(one, other) != ATTACKS[name].draws


@under_its_threats(name for name in ANY_MODEL if not ATTACKS[name].foreign)
def test_a_sample_fares_alone_as_in_company(name: str, threat: Threat) -> None:
    victim, _ = linear_victim()
    x, y = batch(5)
    attack = attack_text.build(ATTACKS[name].quick, threat)
    together = attack(victim, x, y, rng=rng(5)).x_adv
    for i in range(5):
        alone = attack(victim, x[i : i + 1], y[i : i + 1], rng=SampleRng(0, (i,))).x_adv
        assert torch.allclose(alone[0], together[i], atol=1e-12)


@every_attack
def test_an_empty_batch_comes_back_empty(name: str, toy: Victim) -> None:
    crafted = ready(name, usual(name), toy)(toy, torch.zeros(0, 3, 32, 32), torch.zeros(0).long(), rng=rng(0))
    assert crafted.x_adv.shape == (0, 3, 32, 32)


@every_attack
def test_the_victim_and_the_world_are_left_as_found(name: str, toy: Victim, toy_images: Images) -> None:
    toy.train()
    toy.model.norm.eval()  # type: ignore[union-attr, operator]
    frozen = next(toy.parameters()).requires_grad_(False)
    modes = [m.training for m in toy.modules()]
    before, state = model_digest(toy), torch.get_rng_state()
    fastpath = torch.backends.mha.get_fastpath_enabled()
    ready(name, usual(name), toy)(toy, *(part[:4] for part in toy_images), rng=rng(4))
    assert [m.training for m in toy.modules()] == modes
    assert model_digest(toy) == before
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.backends.mha.get_fastpath_enabled() == fastpath
    assert all(p.grad is None for p in toy.parameters())
    assert [p for p in toy.parameters() if not p.requires_grad] == [frozen]
    assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in toy.modules())


@every_attack
def test_claimed_passes_are_the_counted_ones(name: str, toy: Victim, toy_images: Images) -> None:
    attack = ready(name, usual(name), toy)
    with counting_passes(toy) as passes:
        evidence = attack(toy, *toy_images, rng=rng(12)).evidence
    assert passes.forwards == int(evidence["forwards"].sum()) > 0
    assert passes.backwards == int(evidence["backwards"].sum())
    assert (passes.backwards == 0) == (ATTACKS[name].black_box or name in MADE_BEFORE)


@every_attack
def test_claimed_successes_are_successes(name: str, toy: Victim, toy_images: Images) -> None:
    x, y = toy_images
    generous = {**EXAMPLES, "linf": parse_threat("linf:16/255"), "l2": parse_threat("l2:1")}
    crafted = ready(name, generous[ATTACKS[name].kinds[0]], toy)(toy, x, y, rng=rng(12))
    fooled = toy(crafted.x_adv).argmax(1) != y
    assert crafted.evidence["fooled"].any()
    assert torch.equal(fooled, crafted.evidence["fooled"])


@under_its_threats(ATTACKS)
def test_text_and_pickle_round_trips(name: str, threat: Threat) -> None:
    text = ATTACKS[name].quick
    attack = attack_text.build(text, threat)
    assert attack_text.canonical(attack_text.canonical(text)) == attack_text.canonical(text)
    assert attack_text.build(attack_text.canonical(text), threat) == attack
    assert pickle.loads(pickle.dumps(attack)) == attack
    assert hash(attack) == hash(attack_text.build(text, threat))


@pytest.mark.parametrize("name", [case(name) for name in ATTACKS if set(EVERY_LP) & set(ATTACKS[name].kinds)])
def test_without_a_budget_nobody_is_fooled(name: str, toy: Victim, toy_images: Images) -> None:
    x, y = (part[:3] for part in toy_images)
    for threat in (THREATS[norm].parse("0px" if norm == "l0" else "0") for norm in EVERY_LP):
        if not fits(name, threat):
            continue
        crafted = ready(name, threat, toy)(toy, x, y, rng=rng(3))
        assert torch.equal(crafted.x_adv, x)
        assert not crafted.evidence["fooled"].any()


@any_model
def test_nan_outputs_are_never_a_success(name: str, toy_images: Images) -> None:
    class Broken(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1)[:, :10] * float("nan")

    x, y = toy_images
    victim = Victim(Broken(), name="broken", num_classes=10, input_size=32)
    crafted = attack_text.build(ATTACKS[name].quick, usual(name))(victim, x, y, rng=rng(12))
    assert not crafted.evidence["fooled"].any()
    assert usual(name).allows(x, crafted.x_adv, crafted.evidence).all()


@pytest.mark.parametrize("classes", [2, 3, 100])
@any_model
def test_any_number_of_classes_is_attacked_or_refused_in_one_line(name: str, classes: int) -> None:
    """DLR needs three classes, its targeted form four, ranks no more than there are: nothing may fail without a word."""
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, classes))
    with torch.no_grad():
        model[1].weight.copy_(torch.randn(classes, 3072, generator=torch.Generator().manual_seed(classes)) * 0.1)
    victim = Victim(model, name="wide", num_classes=classes, input_size=32)
    x = toy_pictures(6)
    with torch.no_grad():
        y = victim(x).argmax(1)
    try:
        crafted = ready(name, usual(name), victim)(victim, x, y, rng=rng(6))
    except UsageError as refusal:
        assert "classes" in str(refusal) and "\n" not in str(refusal)
        # a source has the classes it was trained for; the others are at a loss with few alone
        assert classes < 4 or attack_text.build(ATTACKS[name].quick, usual(name)).traits.sources
        return
    assert usual(name).allows(x, crafted.x_adv, crafted.evidence).all()
    assert torch.equal(victim(crafted.x_adv).argmax(1) != y, crafted.evidence["fooled"])
