"""The AutoAttack package behind our fence: its own verdicts and pixels, with every stage, class count and check."""

from __future__ import annotations

import importlib
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import tiny_vit, toy_pictures
from vitattack import evaluate
from vitattack.attacks import attack_text
from vitattack.attacks.autoattack import reference
from vitattack.attacks.autoattack.flags import Flag
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng, seed_of, seeded
from vitattack.models.passes import counting_passes
from vitattack.models.victim import Victim, frozen
from vitattack.threats.lp import LpBall

theirs = pytest.importorskip("pyautoattack")
N = 6
RNG = SampleRng(5, tuple(range(N)))
BALLS = {"linf": LpBall("linf", 3 / 255), "l2": LpBall("l2", 0.25)}
Case = tuple[Victim, Tensor, Tensor]


@pytest.fixture
def case() -> Case:
    victim, x = tiny_vit(), toy_pictures(N)
    with torch.no_grad():
        return victim, x, victim(x).argmax(1)


class Plane(nn.Module):
    """A linear model of any number of classes."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(classes, 3 * 64, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        return (x.flatten(1) - 0.5) @ self.weight.T


def plane(model: nn.Module, classes: int) -> Case:
    victim = Victim(model, name="plane", num_classes=classes, input_size=8)
    x = 0.5 + 0.1 * torch.randn(N, 3, 8, 8, generator=torch.Generator().manual_seed(1)).clamp(-3, 3)
    with torch.no_grad():
        return victim, x, victim(x).argmax(1)


def directly(case: Case, ball: LpBall, version: str, steps: int, queries: int) -> Tensor:
    """The package itself, as its users call it, with fewer steps."""
    victim, x, y = case
    norm = reference.NORMS[ball.norm]
    whole = theirs.AutoAttack(victim, norm=norm, eps=ball.eps, seed=seed_of(RNG), version=version)
    kinds = importlib.import_module("pyautoattack.autopgd_base")
    for name, kind in (("apgd", kinds.APGDAttack), ("apgd_targeted", kinds.APGDAttack_targeted)):
        part = getattr(whole, name)
        shorter = kind(victim, n_iter=steps, norm=norm, eps=ball.eps, seed=seed_of(RNG), device="cpu")
        shorter.n_restarts, shorter.eot_iter = part.n_restarts, part.eot_iter
        setattr(whole, name, shorter)
    whole.fab.n_iter, whole.square.n_queries = steps, queries
    with seeded(RNG), frozen(victim):
        found, _ = whole.run_standard_evaluation(x, y, batch_size=N)
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("norm", "version", "steps"),
    [("linf", "standard", 3), ("l2", "standard", 3), ("linf", "plus", 2), ("linf", "rand", 1)],
)
def test_pixels_and_verdicts_are_those_of_the_package(case: Case, norm: str, version: str, steps: int) -> None:
    victim, x, y = case
    expected = directly(case, BALLS[norm], version, steps, queries=10)
    attack = attack_text.build(f"autoattack_ref(version={version}, steps={steps}, queries=10)", BALLS[norm])
    x_adv, evidence = attack(victim, x, y, rng=RNG)
    assert torch.equal(x_adv, expected)
    with torch.no_grad():
        wrong = victim(expected).argmax(1) != y
    assert torch.equal(evidence["fooled"], wrong)
    assert wrong.any() and not wrong.all()
    assert torch.equal(evidence["stage"] >= 0, wrong)


@pytest.mark.slow
def test_full_settings_on_a_few_images_are_those_of_the_package(case: Case) -> None:
    victim, x, y = case
    ball = LpBall("linf", 2 / 255)
    with seeded(RNG), frozen(victim):
        whole = theirs.AutoAttack(victim, norm="Linf", eps=ball.eps, seed=seed_of(RNG), version="standard")
        expected, _ = whole.run_standard_evaluation(x, y, batch_size=N)
    found = attack_text.build("autoattack_ref", ball)(victim, x, y, rng=RNG)
    assert torch.equal(found.x_adv, expected)


def test_each_stage_gets_those_who_stand_and_says_whom_it_broke(case: Case) -> None:
    victim, x, y = case
    ball = BALLS["linf"]
    weak = attack_text.build("autoattack_ref(stages=('apgd-ce',), steps=1)", ball)(victim, x, y, rng=RNG)
    both = attack_text.build("autoattack_ref(stages=('apgd-ce', 'apgd-t'), steps=1)", ball)(victim, x, y, rng=RNG)
    first = weak.evidence["fooled"]
    assert first.any() and not first.all()
    assert torch.equal(both.evidence["stage"] == 0, first)
    assert torch.equal(both.x_adv[first], weak.x_adv[first])
    assert torch.equal(both.evidence["forwards"][first], weak.evidence["forwards"][first])
    assert (both.evidence["forwards"][~first] > weak.evidence["forwards"][~first]).all()
    standing = ~both.evidence["fooled"]
    assert torch.equal(both.x_adv[standing], x[standing])


def test_a_robust_sample_costs_what_is_published() -> None:
    """7,857 forwards, of which the run makes the clean one, 7 more for the checks, and 1,910 backwards."""
    victim, x, y = plane(Plane(10), 10)
    attack = attack_text.build("autoattack_ref", LpBall("linf", 0.0))
    with counting_passes(victim) as passes:
        evidence = attack(victim, x[:1], y[:1], rng=SampleRng(0, (0,))).evidence
    assert int(evidence["forwards"]) == passes.forwards == 7857 - 1 + 7
    assert int(evidence["backwards"]) == passes.backwards == 1910


@pytest.mark.parametrize("classes", [2, 3, 4, 100])
@pytest.mark.parametrize("version", ["standard", "plus"])
def test_few_classes_leave_out_what_cannot_be_done(classes: int, version: str) -> None:
    victim, x, y = plane(Plane(classes), classes)
    ball = LpBall("linf", 2 / 255)
    attack = attack_text.build(f"autoattack_ref(version={version}, steps=3, queries=5)", ball)
    x_adv, evidence = attack(victim, x, y, rng=RNG)
    assert ball.allows(x, x_adv).all()
    with torch.no_grad():
        assert torch.equal(victim(x_adv).argmax(1) != y, evidence["fooled"])
    assert bool((evidence["flags"] & Flag.LEFT_OUT).any()) == (classes < 4)
    assert evidence["fooled"].any()


def test_nothing_left_is_refused_in_one_line() -> None:
    victim, x, y = plane(Plane(3), 3)
    with pytest.raises(UsageError, match="apgd-t need at least 4 classes, the model has 3: use apgd-ce"):
        attack_text.build("autoattack_ref(stages=('apgd-t',))", BALLS["linf"])(victim, x, y, rng=RNG)


class Odd(Plane):
    """A model that each check of the package has something to say about."""

    def __init__(self, how: str) -> None:
        super().__init__(5)
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        if self.how == "random":
            return logits + 0.1 * torch.randn_like(logits)
        if self.how == "probabilities":
            return logits.softmax(1)
        if self.how == "dynamic":
            with torch.enable_grad():
                torch.autograd.grad((leaf := x.detach().requires_grad_()).sum(), leaf)
        return logits.round() if self.how == "flat" else logits


@pytest.mark.parametrize(
    ("how", "flag", "doubt"),
    [
        ("random", Flag.RANDOM, "finds the model random"),
        ("probabilities", Flag.PROBABILITIES, "finds probabilities"),
        ("dynamic", Flag.DYNAMIC, "gradients taken inside a forward"),
        ("flat", Flag.ZERO_GRADIENT, "zero gradients of the DLR loss"),
        ("plain", Flag(0), ""),
    ],
)
def test_the_checks_of_the_package_become_doubts(how: str, flag: Flag, doubt: str) -> None:
    victim, x, y = plane(Odd(how), 5)
    text = "autoattack_ref(stages=('apgd-dlr',), steps=2)"
    trace = sys.gettrace()
    flags = attack_text.build(text, BALLS["linf"])(victim, x, y, rng=RNG).evidence["flags"]
    assert sys.gettrace() is trace
    assert all(int(f) == flag for f in flags)
    doubts = evaluate(victim, text, threat="linf:3/255", data=(x, y), threads=1).doubts
    assert any(doubt in line for line in doubts) if doubt else not any("check finds" in line for line in doubts)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("autoattack_ref(steps=2, queries=2)", ("apgd-ce", "apgd-t", "fab-t", "square")),
        ("autoattack_ref(version=rand, steps=2)", ("apgd-ce", "apgd-dlr")),
        ("autoattack_ref(version='plus', stages=('square', 'apgd-ce'), steps=2)", ("square", "apgd-ce")),
    ],
)
def test_results_name_the_stages(text: str, names: tuple[str, ...]) -> None:
    victim, x, y = plane(Plane(5), 5)
    result = evaluate(victim, text, threat="linf:3/255", data=(x, y), threads=1).results[0]
    section = result.section("stages")
    assert section is not None
    found = section.content
    assert tuple(found) == names and sum(found.values()) == result.count("fooled") > 0


def test_settings_below_autoattack_are_doubted() -> None:
    ball = BALLS["linf"]
    assert attack_text.build("autoattack_ref", ball).doubts() == ()
    assert (
        "apgd-t, fab-t, square left out" in attack_text.build("autoattack_ref(stages=('apgd-ce',))", ball).doubts()[0]
    )
    assert "not 50 and 5000" in attack_text.build("autoattack_ref(steps=50)", ball).doubts()[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("autoattack_ref(stages=('apgd',))", "unknown stage of autoattack_ref 'apgd': did you mean apgd-"),
        ("autoattack_ref(stages=())", "has no stage"),
        ("autoattack_ref(steps=0)", "at least 1 step"),
        ("autoattack_ref(queries=-1)", "at least 1 step and 1 query"),
        ("autoattack_ref(version=fast)", "did you mean|known"),
        ("targets(autoattack_ref, k=2)", "losses of their own"),
    ],
)
def test_wrong_options_are_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        attack_text.build(text, BALLS["linf"])(*plane(Plane(5), 5), rng=RNG)
    assert "\n" not in str(caught.value)


def fresh_package(monkeypatch: pytest.MonkeyPatch, **modules: Any) -> None:
    reference.package.cache_clear()
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)


def test_without_a_package_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    victim, x, y = case
    fresh_package(monkeypatch, autoattack=None, pyautoattack=None)
    try:
        with pytest.raises(UsageError, match="pip install pyautoattack$"):
            attack_text.build("autoattack_ref", BALLS["linf"])(victim, x, y, rng=RNG)
    finally:
        reference.package.cache_clear()


def test_the_official_package_comes_first(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    """Its constructor takes positional arguments and prints unless told; the parts are the same."""
    victim, x, y = case
    built: list[dict[str, Any]] = []

    def official(
        model: Any, norm: str = "Linf", eps: float = 0.3, seed: Any = None, verbose: bool = True, **rest: Any
    ) -> Any:
        built.append({"verbose": verbose, **rest})
        return theirs.AutoAttack(model, norm=norm, eps=eps, seed=seed, **rest)

    module = types.ModuleType("autoattack")
    module.__spec__ = ModuleSpec("autoattack", None, is_package=True)
    module.AutoAttack = official  # type: ignore[attr-defined]
    text = "autoattack_ref(stages=('apgd-ce',), steps=3)"
    expected = attack_text.build(text, BALLS["linf"])(victim, x, y, rng=RNG).x_adv
    checks = importlib.import_module("pyautoattack.checks")
    fresh_package(monkeypatch, **{"autoattack": module, "autoattack.checks": checks})
    try:
        found = attack_text.build(text, BALLS["linf"])(victim, x, y, rng=RNG).x_adv
    finally:
        reference.package.cache_clear()
    assert torch.equal(found, expected)
    assert built == [{"verbose": False, "version": "standard", "device": torch.device("cpu")}]


def test_a_script_of_that_name_is_not_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "autoattack.py").write_text("raise RuntimeError('this was run')")
    monkeypatch.syspath_prepend(tmp_path)
    fresh_package(monkeypatch)
    try:
        assert reference.package() == "pyautoattack"
    finally:
        reference.package.cache_clear()
