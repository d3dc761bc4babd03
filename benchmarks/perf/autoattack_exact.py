"""Speed of AutoAttack, ours and the authors' package: same stages and settings, on an undefended and a robust ViT.

    python benchmarks/perf/autoattack_exact.py [--rounds 3] [--threads 1] [--models tiny-vit-standard tiny-vit] [--images 64 16]

Both get the clean-correct images only, in batches of 64, at linf 8/255. The package is called as its users call it;
--sandboxed calls it through `autoattack_ref`, where parameters are frozen and its FAB is the faster for it. All of our gain
comes from dropping fooled images inside a stage and from one forward per step of FAB, so it depends on how many fall:
target 12x on an undefended model, 1.12x on a robust one, where 1.23x is the ceiling of doing exactly the same in fp32.
A robust image costs about 5,000 gradients on either side: choose --images with care; --steps and --queries
make a smoke run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from measure import arguments, conditions, interleaved, median
from torch import Tensor

from vitattack.attacks import attack_text
from vitattack.attacks.autoattack.reference import PAPER_QUERIES, PAPER_STEPS, AutoAttackReference, package
from vitattack.attacks.base import Attack
from vitattack.core.rng import SampleRng
from vitattack.data import load_data
from vitattack.models.passes import counting_passes
from vitattack.models.victim import Victim, frozen
from vitattack.models.zoo.load import load_model
from vitattack.threats.lp import LpBall

BALL, BATCH = LpBall("linf", 8 / 255), 64
Batches = list[tuple[Tensor, Tensor, SampleRng]]


def survivors(victim: Victim, x_adv: Tensor, y: Tensor) -> Tensor:
    with frozen(victim), torch.no_grad():
        return victim(x_adv).argmax(1) == y


def by_us(attack: Attack, victim: Victim, batches: Batches, found: dict[str, Tensor], name: str) -> None:
    with counting_passes(victim) as passes:
        found[name] = torch.cat([~attack(victim, x, y, rng=rng).evidence["fooled"] for x, y, rng in batches])
    found[f"{name} passes"] = torch.tensor([passes.forwards, passes.backwards])


def by_package(
    reference: AutoAttackReference, victim: Victim, batches: Batches, found: dict[str, Tensor], name: str
) -> None:
    """The package over all batches, its parts set to the same steps and queries."""
    standing = []
    with counting_passes(victim) as passes, torch.random.fork_rng():
        for x, y, rng in batches:
            whole = reference.whole(victim, rng.seed, x.device)
            for name_there, stage in (
                ("apgd", "apgd-ce"),
                ("apgd_targeted", "apgd-t"),
                ("fab", "fab-t"),
                ("square",) * 2,
            ):
                setattr(whole, name_there, reference.part(stage, victim.num_classes, victim, rng.seed, x.device))
            answer = whole.run_standard_evaluation(x, y, **{_batch_word(): len(x)})
            standing.append(answer[0] if isinstance(answer, tuple) else answer)
    found[f"{name} passes"] = torch.tensor([passes.forwards, passes.backwards])
    found[name] = torch.cat([survivors(victim, x_adv, y) for x_adv, (_, y, _) in zip(standing, batches)])


def _batch_word() -> str:
    return "bs" if package() == "autoattack" else "batch_size"


def compare(model: str, count: int, args: argparse.Namespace, ours: Attack, reference: AutoAttackReference) -> None:
    victim = load_model(model, torch.device("cpu")).victim
    data = load_data("cifar10-demo")
    x, y = data.read(data.rows)
    with frozen(victim), torch.no_grad():
        right = torch.cat([victim(part).argmax(1) for part in x.split(250)]) == y
    rows = right.nonzero().flatten()[:count]
    batches: Batches = [(x[part], y[part], SampleRng(0, tuple(part.tolist()))) for part in rows.split(BATCH)]
    found: dict[str, Tensor] = {}
    theirs = by_us if args.sandboxed else by_package
    ways: dict[str, Callable[[], object]] = {
        "ours": partial(by_us, ours, victim, batches, found, "ours"),
        "theirs": partial(theirs, reference, victim, batches, found, "theirs"),
    }
    survivors(victim, x[:4], y[:4])  # the warm-up: a whole run of each would take as long as the measurement
    seconds = interleaved(ways, args.rounds, warm=False)
    print(f"\n{model}, {len(rows)} clean-correct images, batch {BATCH}, {reference.version}, {BALL}")
    for name in ways:
        forwards, backwards = (int(p) / len(rows) for p in found[f"{name} passes"])
        robust = float(found[name].float().mean())
        print(
            f"{name:>6}: {median(seconds[name]):.1f} s, robust accuracy of these images {robust:.1%}, "
            f"{forwards:,.0f} forwards + {backwards:,.0f} backwards per image"
        )
    print(f"images with another verdict: {int((found['ours'] != found['theirs']).sum())}")
    ratios = sorted(b / a for a, b in zip(seconds["ours"], seconds["theirs"]))
    print(f"ratio {median(ratios):.2f}x (rounds: {', '.join(f'{r:.2f}' for r in ratios)})")


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--models", nargs="+", default=["tiny-vit-standard", "tiny-vit"])
    parser.add_argument("--images", nargs="+", type=int, default=[64, 16], help="how many for each model")
    parser.add_argument("--steps", type=int, default=PAPER_STEPS)
    parser.add_argument("--queries", type=int, default=PAPER_QUERIES)
    parser.add_argument("--sandboxed", action="store_true", help="the package through autoattack_ref")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    options = f"(steps={args.steps}, queries={args.queries})"
    ours, reference = (attack_text.build(f"{name}{options}", BALL) for name in ("autoattack", "autoattack_ref"))
    assert isinstance(reference, AutoAttackReference)
    print(conditions(args.threads))
    print(
        f"{args.steps} steps, {args.queries} queries; theirs: {package()}{' behind our fence' if args.sandboxed else ''}"
    )
    for model, count in zip(args.models, args.images, strict=True):
        compare(model, count, args, ours, reference)


if __name__ == "__main__":
    main()
