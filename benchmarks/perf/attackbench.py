"""Smallest perturbations, ours and peers', of the same images: medians, AttackBench's optimality, and passes.

    pip install --no-deps adv-lib adversarial-robustness-toolbox; pip install foolbox torchattacks scikit-learn
    python benchmarks/perf/attackbench.py --models tiny-vit redteam:vit-trades --images 100 --peers adv-lib foolbox
    python benchmarks/perf/attackbench.py --passes 2000 --most 16 --models redteam:cnn-trades-l2     AttackBench's budget

Attacks run on images that are classified correctly, with as many passes (forwards and backwards) as --passes; an attack that
spends more says so and is no yardstick. A perturbation counts if the plain model errs on it twice. Optimality is against
the smallest that any attack of the table found; l0 counts features, as the peers do. With --keep FOLDER what was measured
is kept there, a file for each attack, and not measured again.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from attackbench_peers import LIBRARIES, MANY, Craft, crafts
from red_team import resolved
from torch import Tensor

from vitattack.analyses.strength.curve import WIDE, Found, optimality
from vitattack.attacks import attack_text
from vitattack.core.errors import UsageError
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
SLACK = 1.01  # two passes more for the clean image are no advantage
# Passes per step of these attacks with ten classes, for --passes.
FAB_STEP, FAB_T_STEP = 15, 28


def ours(norm: str, passes: int, ball: LpBall) -> Iterator[tuple[str, Craft]]:
    """Our attacks for a norm; FAB and CW only where passes are enough for them."""
    steps = passes // 2
    texts = [f"fmn(steps={steps}, stop=never)"]
    if norm == "l2":
        texts.append(f"ddn(steps={steps}, stop=never)")
    if norm == "l0":
        texts.append(f"sigma_zero(steps={steps}, stop=never)")
    if norm in ("linf", "l2"):
        texts.append("deepfool" if passes >= 500 else f"deepfool(steps={passes // 10 - 1})")
    if norm != "l0" and passes >= MANY:
        texts += [f"fab(steps={passes // FAB_STEP}, stop=never)", f"fab_t(steps={passes // FAB_T_STEP}, stop=never)"]
    if norm == "l2" and passes >= MANY:
        texts.append(f"cw_l2(steps={steps // 5}, stop=never)")
    for text in texts:
        attack = attack_text.build(text, ball)
        yield (
            text.replace(", stop=never", ""),
            lambda v, x, y, a=attack: a(v, x, y, rng=SampleRng(0, tuple(range(len(x))))).x_adv,
        )


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


def kept(file: Path | None, name: str, craft: Craft, victim: Victim, x: Tensor, y: Tensor, ball: LpBall) -> Found:
    if file is not None and file.exists():
        stored = json.loads(file.read_text())
        return Found(name, tuple(stored["sizes"]), stored["passes"])
    found, seconds = measured(name, craft, victim, x, y, ball)
    print(f"{name}: median {found.middle:.4g}, {found.passes:.0f} passes, {seconds:.1f} s", file=sys.stderr, flush=True)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"sizes": found.sizes, "passes": found.passes, "seconds": seconds}))
    return found


def opened(model: str) -> Victim:
    """A model of the zoo, or `redteam:NAME` for a model trained for the red team."""
    file, options = resolved(model, FileOptions())
    return load_model(file, torch.device("cpu"), options).victim


def table(model: str, norm: str, args: argparse.Namespace) -> Table:
    victim, data = opened(model), load_data("cifar10-demo")
    x, y = data.read(data.rows[args.first : args.first + args.images])
    with torch.no_grad():
        right = torch.cat([victim(part).argmax(1) for part in x.split(64)]) == y
    x, y = x[right][: args.most], y[right][: args.most]
    ball = parse_threat(BUDGETS[norm])
    assert isinstance(ball, LpBall)
    found = []
    for name, craft in (*ours(norm, args.passes, ball), *crafts(norm, args.passes, args.peers)):
        if not any(fnmatchcase(name, pattern) for pattern in args.only):
            continue
        label = f"{model}-{norm}-{args.passes}-{args.first}-{len(x)}-{name}.json".replace(":", "-")
        file = args.keep / label if args.keep else None
        try:
            found.append(kept(file, name, craft, victim, x, y, ball))
        except Exception as error:  # noqa: BLE001 - somebody else's attack: the others are still of use
            print(f"{name} failed: {error!r}", file=sys.stderr, flush=True)
    fair = [each for each in found if each.passes <= args.passes * SLACK + 1]
    best = Found("all", tuple(map(min, zip(*(each.sizes for each in fair), strict=True))), 0)
    rows = []
    for each in sorted(found, key=lambda each: -(optimality(each, best) or 0)):
        how, missed = optimality(each, best), sum(map(math.isinf, each.sizes))
        spent = f"{each.passes:,.0f}" + ("" if each in fair else " (too many)")
        rows.append((each.attack, f"{each.middle:.4g}", f"{how or 0:.3f}", str(missed), spent))
    heads = ("attack", f"median {norm}", "optimality", "without any", "passes")
    return Table(f"{model}, {norm}, at most {args.passes:,} passes, {len(x)} images that are right", heads, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["tiny-vit"])
    parser.add_argument("--norms", nargs="+", choices=list(BUDGETS), default=list(BUDGETS))
    parser.add_argument("--passes", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the first image")
    parser.add_argument("--images", type=int, default=100, help="images, right or not")
    parser.add_argument("--most", type=int, default=100, help="of those that are right, as many at most")
    parser.add_argument("--peers", nargs="*", choices=list(LIBRARIES), default=list(LIBRARIES))
    parser.add_argument(
        "--only", nargs="+", default=["*"], metavar="PATTERN", help="attacks whose name fits: 'fmn*' '*ddn*'"
    )
    parser.add_argument("--keep", type=Path, help="a folder for what was measured")
    args = parser.parse_args()
    torch.set_num_threads(1)
    try:
        for model in args.models:
            for norm in args.norms:
                print(table(model, norm, args).markdown(), flush=True)
    except UsageError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
