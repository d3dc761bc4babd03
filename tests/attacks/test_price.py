"""Prices computed from settings, against the passes that are really made on a victim that nothing fools."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import Tensor, nn

from vitattack.attacks import attack_text
from vitattack.attacks.autoattack.autoattack import MM_PRESETS, VERSIONS
from vitattack.attacks.catalogue import ATTACKS
from vitattack.attacks.gradient.variants import PGD_PRESETS
from vitattack.attacks.minimum_norm.cw_l2 import PRESETS as CW_PRESETS
from vitattack.attacks.price import CLEAN_AND_VERDICT, PassesPerImage, Price, PriceQuery, of_one_image
from vitattack.bench.cells import cells
from vitattack.bench.read.benchmark_file import read_benchmark, shipped_benchmarks
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.passes import counting_passes
from vitattack.models.victim import Victim
from vitattack.threats.base import parse_threat

FOREIGN = ("autoattack_ref", "torchattacks")
MOST = 210  # forwards that are really made here for one text


class Mixing(nn.Module):
    """Attention among pixels: something for AAS to scale, and for Patch-Fool to draw."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(3, 9)

    def forward(self, tokens: Tensor) -> Tensor:
        q, k, v = self.qkv(tokens).chunk(3, -1)
        mixed: Tensor = (q @ k.transpose(1, 2)).softmax(-1) @ v
        return mixed


class Block(nn.Module):
    """A residual branch of attention: something for SGM to decay."""

    def __init__(self) -> None:
        super().__init__()
        self.mixing = Mixing()

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = tokens + self.mixing(tokens)
        return out


class Stubborn(nn.Module):
    """Class 0 wherever one looks, with a gradient, and with one residual branch of attention."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.blocks = nn.ModuleList([Block()])

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.blocks[0](x.flatten(2).transpose(1, 2)).sum((1, 2))
        score = x.flatten(1).sum(1) + 1e-3 * mixed.tanh()
        return torch.stack([score + 10, *(score * k / self.classes for k in range(1, self.classes))], 1)


class Distant(Stubborn):
    """Class 0 inside any budget used here, the others beyond a brightness of 0.7: a boundary for FAB to find."""

    def forward(self, x: Tensor) -> Tensor:
        faint = super().forward(x)[:, :1].tanh() * 1e-9
        brighter = (x.flatten(1).mean(1, keepdim=True) / 0.7).log()
        return torch.cat([faint, *(brighter * (1 + k / self.classes) for k in range(1, self.classes))], 1)


def counted(text: str, threat: str, classes: int) -> PassesPerImage:
    """What a text spends on an image, the forwards around it included; the total is counted by hooks from outside."""
    torch.manual_seed(0)
    seeks_boundary = "fab" in text or ("autoattack" in text and "rand" not in text)
    # FAB crosses the boundary with its first step on the first image and later on the second, as in any larger batch
    brightness = torch.tensor([0.66, 0.5] if seeks_boundary else [0.5])
    model = Distant(classes) if seeks_boundary else Stubborn(classes)
    victim = Victim(model, name="stubborn", num_classes=classes, input_size=4).eval()
    x = brightness.view(-1, 1, 1, 1).expand(-1, 3, 4, 4).clone()
    y, calibration = torch.zeros(len(x), dtype=torch.long), (x[:1].expand(2, -1, -1, -1), torch.zeros(2).long())
    attack = attack_text.build(text, parse_threat(threat)).prepare(victim, lambda: calibration, rng=SampleRng(0, (0,)))
    with counting_passes(victim) as passes:
        crafted = attack(victim, x, y, rng=SampleRng(0, tuple(range(len(x)))))
    assert not crafted.evidence["fooled"].any()
    spent = {name: crafted.evidence[name].long() for name in ("forwards", "backwards")}
    if "fp64" not in text:  # a copy in double precision has no hooks of the victim
        assert (int(spent["forwards"].sum()), int(spent["backwards"].sum())) == (passes.forwards, passes.backwards)
    return CLEAN_AND_VERDICT.plus(PassesPerImage(int(spent["forwards"][0]), int(spent["backwards"][0])))


def price(text: str, *, classes: int, threat: str) -> Price | None:
    against = parse_threat(threat)
    return of_one_image(attack_text.build(text, against), PriceQuery(classes, against))


def expected(text: str, threat: str, classes: int) -> PassesPerImage:
    found = price(text, classes=classes, threat=threat)
    assert found is not None
    return found.victim


def threat_of(name: str) -> str:
    small = {
        "linf": "linf:8/255",
        "l2": "l2:0.5",
        "l1": "l1:0.5",
        "l0": "l0:1px",
        "spatial": "spatial:2px,30deg",
        "patch": "patch:2px",
    }
    return small[ATTACKS[name].kinds[0]]


OURS = [name for name in ATTACKS if name not in FOREIGN]
PLAIN = [
    name
    for name in OURS
    if "inner" not in inspect.signature(ATTACKS[name].factory).parameters and name not in ("worst", "cw_l2")
]


@pytest.mark.parametrize("classes", [3, 10])
@pytest.mark.parametrize("name", OURS)
def test_the_quick_form_of_every_attack(name: str, classes: int) -> None:
    text, threat = ATTACKS[name].quick, threat_of(name)
    if name == "transfer" and classes != 10:
        return  # its source has 10
    assert counted(text, threat, classes) == expected(text, threat, classes)


@pytest.mark.parametrize("name", PLAIN)
def test_every_attack_by_its_defaults(name: str) -> None:
    threat = threat_of(name)
    wanted = expected(name, threat, 10)
    if wanted.forwards <= MOST:
        assert counted(name, threat, 10) == wanted


def test_the_defaults_of_autoattack_are_those_of_its_paper() -> None:
    # 1 + 100 steps; 9 targets of as many and the forward that ranks them; fab the same, and a backward more for each target;
    # 5,000 queries and a start
    forwards = 101 + (1 + 9 * 101) + (1 + 9 * 101) + 5001
    assert expected("autoattack", "linf:8/255", 10) == CLEAN_AND_VERDICT.plus(PassesPerImage(forwards, 100 + 900 + 909))


TEXTS = [
    *(f"pgd(preset={preset})" for preset in PGD_PRESETS),
    "pgd(stop=never, steps=4)",
    "pgd(steps=2, start=odi(steps=3))",
    "pgd(steps=2, loss=kl_to)",
    "pgd(steps=2, loss=margin_targeted)",
    "gama(steps=3, anchor=clean)",
    "restarts(3, pgd(steps=2, stop=never))",
    "worst(pgd(steps=2), pgd(steps=2, stop=never), random(tries=2))",
    "pma(steps=2, stop=never)",
    "md(steps=2, stop=never)",
    "apgd_t(steps=2, stop=never)",
    *(f"mm(preset={preset}, steps=3)" for preset in MM_PRESETS),
    "targets(pgd(steps=2, loss=kl_to), k=20)",
    "targets(pgd(steps=2), which=second)",
    "targets(restarts(2, pgd(steps=2, stop=never)), k=2)",
    *(f"autoattack(version={version}, steps=2, queries=3)" for version in VERSIONS),
    "fab(steps=3, restarts=3, stop=never)",
    "fab(steps=1)",
    "fab_t(steps=9, targets=2)",
    "fab_t(steps=1, stop=never)",
    "fab_t(steps=3, targets=20, restarts=2)",
    "eot(pgd(steps=2, stop=never), n=3)",
    "eot(pgd(steps=2, start=odi, loss=kl_to), n=3)",
    "eot(targets(pgd(steps=2), k=2), n=3)",
    "eot(worst(pgd(steps=2), pgd(steps=1, stop=never)), n=2)",
    "eot(restarts(2, square(queries=3)), n=2)",
    "fp64(worst(pgd(steps=2), fab(steps=2)))",
    *(f"auto(passes={passes}, steps=2, k=2, long=4)" for passes in (18, 40, 60, 100)),
    "auto(until=converged, steps=2, k=2, long=4)",
    "aas(pgd(steps=2), preset=full, restarts=1, batches=1, batch=2, calibration=2, rank_steps=1, steps=1)",
    "aas(pgd(steps=2), batch=2, calibration=2, rank_steps=1, steps=1)",
    "aas(pgd(steps=2), batch=2, calibration=2, rank_steps=1, steps=1, report=False)",
    "aas(pgd(steps=2), batch=2, calibration=2, rank_steps=1, steps=1, mode=backward_only)",
    "aas(worst(pgd(steps=2, stop=never), gama(steps=2)), batch=2, calibration=2, rank_steps=1, steps=1, keep=3)",
    "given(fab_t(steps=2), scales=((0.5,), (0.2,), (0.1,)))",
    "perceptual(worst(pgd(steps=2), gama(steps=2)), lpips=False)",
    "di(vdc(worst(pgd(steps=2, stop=never), pgd(steps=1))))",
    "si(pna(pgd(steps=2)), copies=3)",
    "si(ti(pgd(steps=2, start=odi)), copies=2)",
    "ti(worst(pgd(steps=2), square(queries=3)))",
    "patchout(si(restarts(2, di(pgd(steps=2, stop=never))), copies=2))",
]


@pytest.mark.parametrize("text", TEXTS)
def test_options_and_attacks_that_hold_others(text: str) -> None:
    assert counted(text, "linf:8/255", 5) == expected(text, "linf:8/255", 5)


@pytest.mark.parametrize("preset", CW_PRESETS)
def test_cw_l2_may_end_sooner_than_its_price(preset: str) -> None:
    text = f"cw_l2(preset={preset}, steps=30, searches=2)"
    wanted, found = expected(text, "l2:0.5", 10), counted(text, "l2:0.5", 10)
    assert wanted == CLEAN_AND_VERDICT.plus(PassesPerImage(60, 58))
    assert 0 < found.forwards <= wanted.forwards and 0 < found.backwards <= wanted.backwards
    searches, steps, _ = CW_PRESETS[preset]
    assert expected(f"cw_l2(preset={preset})", "l2:0.5", 10) == CLEAN_AND_VERDICT.plus(
        PassesPerImage(searches * steps, searches * (steps - 1))
    )


@pytest.mark.parametrize(
    ("threat", "grid"), [("spatial:2px,30deg", 45), ("spatial:0px,30deg", 5), ("spatial:2px,0deg", 9)]
)
def test_axes_along_which_nothing_moves_cost_nothing(threat: str, grid: int) -> None:
    for text in ("spatial(shifts=3, angles=5)", "spatial(shifts=3, angles=5, full_grid=True)"):
        assert (
            expected(text, threat, 10) == counted(text, threat, 10) == CLEAN_AND_VERDICT.plus(PassesPerImage(grid, 0))
        )


def test_candidates_made_elsewhere_are_paid_there() -> None:
    text = "worst(transfer('tiny-vit', pgd), restarts(2, transfer('tiny-cnn-standard', fgsm)))"
    found = price(text, classes=10, threat="linf:8/255")
    assert found is not None and found.victim == CLEAN_AND_VERDICT.plus(PassesPerImage(3, 0))
    assert found.sources == (("tiny-vit", PassesPerImage(21, 20)), ("tiny-cnn-standard", PassesPerImage(4, 2)))


@pytest.mark.parametrize("name", FOREIGN)
def test_nobody_knows_what_other_packages_spend(name: str) -> None:
    assert price(ATTACKS[name].quick, classes=10, threat="linf:8/255") is None
    assert price(f"worst(pgd, {ATTACKS[name].quick})", classes=10, threat="linf:8/255") is None


def test_every_text_of_the_shipped_benchmarks() -> None:
    texts = {
        (c.attack, c.threat.partition(":")[0]): c
        for name in shipped_benchmarks()
        for c in cells(read_benchmark(name))
        if c.runnable
    }
    assert len(texts) > 20
    for cell in texts.values():
        attack_text.build(cell.attack, parse_threat(cell.threat))  # whoever is named in them can be built
        if cell.attack.partition("(")[0] not in (*FOREIGN, "transfer"):
            wanted = expected(cell.attack, cell.threat, 10)
            if wanted.forwards <= 140:
                assert counted(cell.attack, cell.threat, 10) == wanted, cell.attack


def test_restarts_beyond_count_are_priced_at_once() -> None:
    one = price("restarts(1, pgd)", classes=10, threat="linf:8/255")
    many = price("restarts(10000, restarts(10000, pgd))", classes=10, threat="linf:8/255")
    assert one is not None and many is not None
    assert many.victim == CLEAN_AND_VERDICT.plus(PassesPerImage(21, 20).times(10**8))
    assert one.victim == CLEAN_AND_VERDICT.plus(PassesPerImage(21, 20))


@pytest.mark.parametrize(
    "text", ["restarts(-3, pgd)", "pgd(steps=-1)", "worst(fgsm, mm(k=-2))", "pgd(start=odi(steps=-1))"]
)
def test_nothing_has_a_negative_price(text: str) -> None:
    with pytest.raises(UsageError):
        attack_text.build(text, parse_threat("linf:8/255"))
