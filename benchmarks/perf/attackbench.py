"""Smallest perturbations, ours and peers', of the same images in one process: medians, AttackBench's optimality, and passes.

    pip install --no-deps adv-lib; pip install foolbox
    python benchmarks/perf/attackbench.py --models tiny-vit tiny-cnn-standard --images 100 --norms linf l2 l1 l0
    python benchmarks/perf/attackbench.py --steps 20 --norms l2            the same with few passes

Attacks run on images that are classified correctly; a perturbation counts if the plain model errs on
it twice, and optimality is against the smallest that any attack of the table found. l0 counts features, as the peers do.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from vitattack.analyses.strength.curve import WIDE, Found, optimality
from vitattack.attacks import attack_text
from vitattack.core.rng import SampleRng
from vitattack.core.table import Table
from vitattack.data import load_data
from vitattack.models.passes import counting_passes
from vitattack.models.victim import Victim
from vitattack.models.zoo.file_options import FileOptions
from vitattack.models.zoo.load import load_model
from vitattack.threats.base import parse_threat
from vitattack.threats.lp import LpBall

BUDGETS = WIDE | {"l0": "l0:1000000features"}
ORDER = {"linf": float("inf"), "l2": 2, "l1": 1, "l0": 0}
OURS = {
    "linf": ("fmn(steps={n}, stop=never)", "deepfool"),
    "l2": ("fmn(steps={n}, stop=never)", "ddn(steps={n}, stop=never)", "deepfool"),
    "l1": ("fmn(steps={n}, stop=never)",),
    "l0": ("fmn(steps={n}, stop=never)", "sigma_zero(steps={n}, stop=never)"),
}
Craft = Callable[[Victim, Tensor, Tensor], Tensor]


def ours(text: str, ball: LpBall) -> Craft:
    attack = attack_text.build(text, ball)
    return lambda victim, x, y: attack(victim, x, y, rng=SampleRng(0, tuple(range(len(x))))).x_adv


def of_adv_lib(norm: str, steps: int) -> Iterator[tuple[str, Craft]]:
    """The attacks of adv-lib; its logger wants visdom, which nothing here draws with."""
    sys.modules.setdefault("visdom", types.ModuleType("visdom"))
    from adv_lib.attacks.decoupled_direction_norm import ddn
    from adv_lib.attacks.deepfool import df
    from adv_lib.attacks.fast_minimum_norm import fmn
    from adv_lib.attacks.sigma_zero import sigma_zero

    def found(function: Callable[..., Tensor], **settings: Any) -> Craft:
        return lambda victim, x, y: function(victim, x.clone(), y, **settings).detach()

    yield "adv-lib fmn", found(fmn, norm=ORDER[norm], steps=steps)
    if norm == "l2":
        yield "adv-lib ddn", found(ddn, steps=steps, levels=None)
    if norm in ("linf", "l2"):
        yield "adv-lib deepfool", found(df, norm=ORDER[norm], steps=50)
    if norm == "l0":
        yield "adv-lib sigma-zero", found(sigma_zero, num_steps=steps)


def of_foolbox(norm: str, steps: int) -> Iterator[tuple[str, Craft]]:
    import foolbox

    kinds = {
        "linf": foolbox.attacks.LInfFMNAttack,
        "l2": foolbox.attacks.L2FMNAttack,
        "l1": foolbox.attacks.L1FMNAttack,
        "l0": foolbox.attacks.L0FMNAttack,
    }
    attacks: dict[str, Any] = {"foolbox fmn": kinds[norm](steps=steps)}
    if norm == "l2":
        attacks["foolbox ddn"] = foolbox.attacks.DDNAttack(steps=steps)

    def found(attack: Any) -> Craft:
        def craft(victim: Victim, x: Tensor, y: Tensor) -> Tensor:
            _, candidates, _ = attack(foolbox.PyTorchModel(victim, bounds=(0, 1), device="cpu"), x, y, epsilons=None)
            return torch.as_tensor(candidates)

        return craft

    yield from ((name, found(attack)) for name, attack in attacks.items())


def measured(name: str, craft: Craft, victim: Victim, x: Tensor, y: Tensor, ball: LpBall) -> tuple[Found, float]:
    """Sizes of what an attack found, where the plain model errs on it twice, with its passes and seconds."""
    began = time.process_time()
    with counting_passes(victim) as passes:
        x_adv = craft(victim, x, y)
    seconds = time.process_time() - began
    with torch.no_grad():
        wrong = (victim(x_adv).argmax(1) != y) & torch.cat([victim(part).argmax(1) for part in x_adv.split(7)]).ne(y)
    wrong &= ((x_adv >= 0) & (x_adv <= 1)).flatten(1).all(1)
    sizes = ball.size(x, x_adv).where(wrong, math.inf).tolist()
    return Found(name, tuple(sizes), (passes.forwards + passes.backwards) / len(x)), seconds


def table(model: str, norm: str, steps: int, images: int, seconds: list[float]) -> Table:
    victim = load_model(model, torch.device("cpu"), FileOptions()).victim
    data = load_data("cifar10-demo")
    x, y = data.read(data.rows[:images])
    with torch.no_grad():
        right = torch.cat([victim(part).argmax(1) for part in x.split(64)]) == y
    x, y = x[right], y[right]
    ball = parse_threat(BUDGETS[norm])
    assert isinstance(ball, LpBall)
    crafts = [(text, ours(text, ball)) for text in (each.format(n=steps) for each in OURS[norm])]
    crafts += [*of_adv_lib(norm, steps), *of_foolbox(norm, steps)]
    found = [measured(name, craft, victim, x, y, ball) for name, craft in crafts]
    best = Found("all", tuple(map(min, zip(*(each.sizes for each, _ in found), strict=True))), 0)
    rows = []
    for each, spent in found:
        how, missed = optimality(each, best), sum(map(math.isinf, each.sizes))
        rows.append(
            (each.attack, f"{each.middle:.4g}", f"{how or 0:.3f}", str(missed), f"{each.passes:.0f}", f"{spent:.1f}")
        )
        seconds.append(spent)
    heads = ("attack", f"median {norm}", "optimality", "without any", "passes", "CPU s")
    return Table(f"{model}, {norm}, {steps} steps, {len(x)} images that are right", heads, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["tiny-vit"])
    parser.add_argument("--norms", nargs="+", choices=list(BUDGETS), default=list(BUDGETS))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--images", type=int, default=100)
    args = parser.parse_args()
    torch.set_num_threads(1)
    seconds: list[float] = []
    for model in args.models:
        for norm in args.norms:
            print(table(model, norm, args.steps, args.images, seconds).markdown(), flush=True)
    print(f"{sum(seconds):.0f} CPU seconds in all attacks")


if __name__ == "__main__":
    main()
