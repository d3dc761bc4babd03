"""Cost of an iteration of FAB-T, ours and the authors', in raw steps (one forward and the input gradient).

    python benchmarks/perf/fab.py [--rounds 5] [--threads 1] [--steps 8]

(t(2n iterations) - t(n iterations)) / n is the cost of one, without start-up. Two phases: nothing fools the model (a class
that cannot be overtaken), or every iterate does, outside the budget, as with survivors of an evaluation. The package
runs two forwards per iteration in both. We run one: the logits of a point serve its verdict and the next linearisation,
and a point that is pulled back is judged only inside the budget. Target: at most 1.15 in both phases.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from measure import arguments, conditions, interleaved, median, raw_steps, small32, tiny224
from pyautoattack.fab_pt import FABAttack_PT
from torch import Tensor, nn

from vitattack.attacks.minimum_norm.fab import FAB
from vitattack.core.rng import SampleRng
from vitattack.models.victim import Victim, frozen
from vitattack.threats.lp import LpBall

EPS = 1e-6


def ours(victim: Victim, x: Tensor, y: Tensor, steps: int) -> Callable[[], object]:
    attack = FAB(LpBall("linf", EPS), steps, targets=1)
    rng = SampleRng(0, tuple(range(len(x))))

    def call() -> None:
        crafted = attack(victim, x, y, rng=rng)
        assert not crafted.evidence["fooled"].any(), "something was fooled: the workload is not what it should be"

    return call


def theirs(victim: Victim, x: Tensor, y: Tensor, steps: int) -> Callable[[], object]:
    """As AutoAttack runs it, with gradients of the model's parameters enabled."""
    attack = FABAttack_PT(victim, norm="Linf", n_iter=steps, eps=EPS, targeted=True, n_target_classes=1)
    return lambda: attack.perturb(x, y)


def without_rivals(victim: Victim) -> Victim:
    """The same model with class 0 far ahead of all others."""
    head = victim.model.head
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        head.bias[0] += 1e3
    return victim


def main() -> None:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(conditions(args.threads))
    for make, batch in ((small32, 32), (tiny224, 8)):
        for phase, victim in (("nothing fooled", without_rivals(make())), ("all fooled beyond eps", make())):
            x = torch.rand(batch, 3, victim.input_size, victim.input_size, generator=torch.Generator().manual_seed(0))
            with frozen(victim), torch.no_grad():
                y = victim(x).argmax(1)
            ways = {
                f"{name} {count}": side(victim, x, y, count)
                for name, side in (("ours", ours), ("theirs", theirs))
                for count in (args.steps, 2 * args.steps)
            }
            ways["raw"] = partial(raw_steps, victim, victim, x, y, args.steps)
            seconds = interleaved(ways, args.rounds)
            print(f"{victim.name}, batch {batch}, {phase}: raw step {1e3 * median(seconds['raw']) / args.steps:.0f} ms")
            for name in ("ours", "theirs"):
                ratios = sorted(
                    (long - short) / plain
                    for short, long, plain in zip(
                        seconds[f"{name} {args.steps}"], seconds[f"{name} {2 * args.steps}"], seconds["raw"]
                    )
                )
                print(f"{name:>8}: {median(ratios):.3f} raw steps (rounds: {', '.join(f'{r:.2f}' for r in ratios)})")


if __name__ == "__main__":
    main()
