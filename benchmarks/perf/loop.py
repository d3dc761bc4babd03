"""The loop tax: the cost of a step of our loop over a raw step (one forward and the input gradient, nothing else).

    python benchmarks/perf/loop.py [--rounds 7] [--threads 1]

At a budget where nothing is fooled, (t(40 steps) - t(20 steps)) / 20 is the cost of one step, including its verdict but
not start-up and final forward. Parameters are frozen in the raw step too. Target: at most 1.03.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from measure import arguments, conditions, interleaved, median, raw_steps, small32, tiny224
from torch import Tensor

from vitattack.attacks.gradient.loop import Gradient
from vitattack.core.rng import SampleRng
from vitattack.models.victim import Victim
from vitattack.threats.lp import LpBall

RAW_STEPS = 20


def run(victim: Victim, x: Tensor, y: Tensor, steps: int) -> Callable[[], object]:
    attack = Gradient(LpBall("linf", 1e-6), steps)
    rng = SampleRng(0, tuple(range(len(x))))

    def call() -> None:
        crafted = attack(victim, x, y, rng=rng)
        assert not crafted.evidence["fooled"].any(), "something was fooled: the workload is not what it should be"

    return call


def main() -> None:
    args = arguments(__doc__, rounds=7).parse_args()
    torch.set_num_threads(args.threads)
    print(conditions(args.threads))
    for victim, batch in ((small32(), 32), (tiny224(), 8)):
        x = torch.rand(batch, 3, victim.input_size, victim.input_size, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            y = victim(x).argmax(1)
        ways = {
            "20 steps": run(victim, x, y, 20),
            "40 steps": run(victim, x, y, 40),
            "raw": partial(raw_steps, victim, victim, x, y, RAW_STEPS),
        }
        seconds = interleaved(ways, args.rounds)
        # a round's own difference and its own raw time: slow drifts of the machine cancel
        taxes = [
            (long - short) / 20 / (plain / RAW_STEPS)
            for short, long, plain in zip(seconds["20 steps"], seconds["40 steps"], seconds["raw"])
        ]
        print(
            f"{victim.name}, batch {batch}: raw step {1e3 * median(seconds['raw']) / RAW_STEPS:.1f} ms, "
            f"step of the loop {1e3 * (median(seconds['40 steps']) - median(seconds['20 steps'])) / 20:.1f} ms, "
            f"tax {median(taxes):.3f} (rounds: {', '.join(f'{t:.3f}' for t in sorted(taxes))})"
        )


if __name__ == "__main__":
    main()
