"""Every class of torchattacks: run behind the fence with tiny settings, or refused in one line."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor

from tests.conftest import tiny_vit, toy_pictures
from vitattack.attacks import attack_text
from vitattack.attacks.foreign.torchattacks import REFUSED, TorchAttack, class_of, norms
from vitattack.core.errors import UsageError, WrongThreat
from vitattack.core.rng import SampleRng
from vitattack.models.passes import counting_passes
from vitattack.models.victim import Victim, model_digest
from vitattack.threats.base import parse_threat
from vitattack.threats.lp import LpBall

library = pytest.importorskip("torchattacks", reason="an extra: make test installs it")
N = 6
LINF, L2 = parse_threat("linf:8/255"), parse_threat("l2:0.5")
# What makes the slow ones quick.
SETTINGS = {
    "APGD": "steps=3",
    "APGDT": "steps=3",
    "DeepFool": "steps=3",
    "EADEN": "max_iterations=10, binary_search_steps=2",
    "FAB": "steps=3",
    "PIFGSM": "num_iter_set=2",
    "PIFGSMPP": "num_iter_set=2",
    "PGDRS": "steps=2, noise_batch_size=2",
    "PGDRSL2": "steps=2, noise_batch_size=2",
    "SPSA": "nb_sample=4, max_batch_size=4",
    "Square": "n_queries=5",
    "FFGSM": "",
    "FGSM": "",
    "GN": "",
}
WITHOUT_GRADIENT = {"GN", "SPSA", "Square"}
LP = [name for name in library.__all__ if name not in REFUSED and norms(getattr(library, name))]
CASES = [(name, ball) for name in LP for ball in (LINF, L2) if ball.kind in norms(getattr(library, name))]


def images(n: int = N) -> tuple[Victim, Tensor, Tensor]:
    victim, x = tiny_vit(), toy_pictures(n)
    with torch.no_grad():
        return victim, x, victim(x).argmax(1)


def text(name: str) -> str:
    settings = SETTINGS.get(name, "steps=2")
    return f"torchattacks({name!r}, {settings})" if settings else f"torchattacks({name!r})"


@pytest.mark.parametrize(("name", "ball"), CASES, ids=str)
def test_every_class_keeps_budget_counts_and_world(name: str, ball: LpBall) -> None:
    victim, x, y = images()
    before, state = model_digest(victim), torch.get_rng_state()
    attack = attack_text.build(text(name), ball)
    with counting_passes(victim) as passes:
        x_adv, evidence = attack(victim, x, y, rng=SampleRng(0, tuple(range(N))))
    assert ball.allows(x, x_adv).all() and x_adv.dtype == x.dtype
    assert passes.forwards == int(evidence["forwards"].sum()) >= N
    assert passes.backwards == int(evidence["backwards"].sum())
    assert (passes.backwards == 0) == (name in WITHOUT_GRADIENT)
    with torch.no_grad():
        assert torch.equal(victim(x_adv).argmax(1) != y, evidence["fooled"])
    assert torch.equal(torch.get_rng_state(), state) and model_digest(victim) == before
    again = attack(victim, x, y, rng=SampleRng(0, tuple(range(N))))
    assert torch.equal(again.x_adv, x_adv)


def test_most_classes_are_accepted() -> None:
    assert len(LP) == 29
    assert {norm for name in LP for norm in norms(getattr(library, name))} == {"linf", "l2"}


@pytest.mark.parametrize(
    ("name", "norm"), [("PGD", ("linf",)), ("PGDL2", ("l2",)), ("FAB", ("linf", "l2")), ("JSMA", ())]
)
def test_the_norm_of_a_class(name: str, norm: tuple[str, ...]) -> None:
    assert norms(getattr(library, name)) == norm


def test_candidates_are_those_of_the_package() -> None:
    victim, x, y = images()
    state = torch.get_rng_state()
    rng = SampleRng(0, tuple(range(N)))
    ours = attack_text.build("torchattacks('MIFGSM', steps=3)", LINF)(victim, x, y, rng=rng).x_adv
    theirs = library.MIFGSM(victim, eps=8 / 255, steps=3)(x, y)
    torch.set_rng_state(state)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("classes", [2, 3, 100])
@pytest.mark.parametrize("name", ["FAB", "Square", "MIFGSM", "APGDT"])
def test_any_number_of_classes(name: str, classes: int) -> None:
    class Cut(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            generator = torch.Generator().manual_seed(0)
            self.weight = torch.nn.Parameter(torch.randn(classes, 3 * 64, generator=generator))

        def forward(self, x: Tensor) -> Tensor:
            return (x.flatten(1) - 0.5) @ self.weight.T

    victim = Victim(Cut(), name="cut", num_classes=classes, input_size=8)
    x = 0.5 + 0.1 * torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1)).clamp(-3, 3)
    with torch.no_grad():
        y = victim(x).argmax(1)
    attack = attack_text.build(text(name), LINF)
    if name == "APGDT" and classes < 4:
        with pytest.raises(UsageError, match="torchattacks.APGDT needs at least 4 classes, the model has") as caught:
            attack(victim, x, y, rng=SampleRng(0, (0, 1, 2, 3)))
        assert "\n" not in str(caught.value)
        return
    assert LINF.allows(x, attack(victim, x, y, rng=SampleRng(0, (0, 1, 2, 3))).x_adv).all()


def test_text_is_canonical() -> None:
    one = "torchattacks(name='MIFGSM', steps=1e1, alpha=2/255)"
    assert attack_text.canonical(one) == "torchattacks('MIFGSM', alpha=0.00784313725490196, steps=10)"
    assert attack_text.canonical("torchattacks('APGD', loss=dlr)") == "torchattacks('APGD', loss='dlr')"
    assert attack_text.build(one, LINF) == TorchAttack(LINF, "MIFGSM", (("alpha", 2 / 255), ("steps", 10)))  # type: ignore[arg-type]
    assert attack_text.canonical("worst(torchattacks('PGDL2'), pgd)") == "worst(torchattacks('PGDL2'), pgd)"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("'AutoAttack'", "10 steps where AutoAttack makes 100: use autoattack"),
        ("'CW'", "use cw_l2"),
        ("'MultiAttack'", r"write worst\("),
        ("'LGV'", "use transfer"),
        ("'VANILA'", "returns the image as it is"),
        ("'JSMA'", "is bounded in L0, which is no threat here"),
        ("'OnePixel'", "bounded in L0"),
        ("'Pixle'", "bounded in L0"),
        ("'SparseFool'", "bounded in L0"),
        ("'EADL1'", "bounded in L1"),
        ("'MIFGMS'", "unknown class of torchattacks 'MIFGMS': did you mean MIFGSM"),
        ("'Attack'", "unknown class"),
        ("'__version__'", "unknown class"),
        ("'PGD', eps=0.1", "the budget is the threat's"),
        ("'PIFGSM', max_epsilon=0.1", "max_epsilon of torchattacks.PIFGSM comes from the threat"),
        ("'APGD', norm='L2'", "norm of torchattacks.APGD comes from the threat"),
        ("'APGD', seed=1", "use --seed"),
        ("'PGD', stepz=1", "unknown option of torchattacks.PGD 'stepz': did you mean steps"),
        ("'PGD', model=1", "unknown option of torchattacks.PGD 'model'"),
        ("'PGD', steps='a'", "takes values like 10, not 'a'"),
        ("'PGD', steps=True", "takes values like 10, not True"),
        ("'PGD', random_start=1", "takes values like True, not 1"),
        ("'PGD', steps=(1, 2)", "takes a number"),
        ("'PGD', steps=" + "9" * 400, "out of any range"),
        ("", "torchattacks needs name"),
        ("3", "takes a quoted text"),
    ],
)
def test_everything_else_is_refused_in_one_line(wrong: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        attack_text.canonical(f"torchattacks({wrong})")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_a_class_of_another_norm_is_refused() -> None:
    with pytest.raises(WrongThreat, match="torchattacks.PGDL2 is not defined for linf threats: use --threat l2:0.5"):
        attack_text.build("torchattacks('PGDL2')", LINF)
    with pytest.raises(WrongThreat, match="use --threat linf:8/255"):
        attack_text.build("worst(torchattacks('PGD'), pgd)", L2)


@pytest.mark.parametrize(
    ("text", "ball", "doubt"),
    [
        ("torchattacks('DeepFool')", L2, "knows no budget"),
        ("torchattacks('APGD')", LINF, "made 10 steps, its paper makes 100"),
        ("torchattacks('PGD', steps=2)", LINF, "reaches only 0.50 eps"),
        ("torchattacks('PGD')", LINF, ""),
        ("torchattacks('APGD', steps=100)", LINF, ""),
    ],
)
def test_doubts(text: str, ball: LpBall, doubt: str) -> None:
    found = attack_text.build(text, ball).doubts()
    assert (doubt in found[0]) if doubt else not found


def test_min_norm_candidates_outside_are_marked() -> None:
    victim, x, y = images()
    found = attack_text.build("torchattacks('DeepFool')", LpBall("l2", 1e-3))(
        victim, x, y, rng=SampleRng(0, tuple(range(N)))
    )
    assert found.evidence["outside"].any() and not (found.evidence["outside"] & found.evidence["fooled"]).any()
    assert torch.equal(found.x_adv[found.evidence["outside"]], x[found.evidence["outside"]])


def test_without_the_package_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchattacks", None)
    with pytest.raises(UsageError, match="pip install --no-deps torchattacks$"):
        class_of("PGD")
