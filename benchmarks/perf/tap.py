"""Overhead of observing and of rescaling attention on a ViT-Tiny at 224 px.

    python benchmarks/perf/tap.py [--rounds 7] [--threads 1]

Observing: a forward whose scores are made explicit in every layer (the fused kernel has none), in fp32 and in fp64,
over a plain forward; target at most 1.5 in fp32. Rescaling: a forward and input gradient of the view with fixed scales
over the same of the plain victim, fused attention kept; target at most 1.03.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from measure import arguments, conditions, interleaved, median, raw_steps, tiny224

from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.attention.rescaled import Rescaled
from vitattack.models.attention.tap import AttentionTap, Seen

BATCH = 8


def main() -> None:
    args = arguments(__doc__, rounds=7).parse_args()
    torch.set_num_threads(args.threads)
    victim = tiny224()
    x = torch.rand(BATCH, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    y = torch.zeros(BATCH, dtype=torch.long)
    layers = attention_layers(victim, x)
    view = Rescaled(victim, torch.full((len(layers),), 0.5), layers=layers)

    def plain() -> None:
        with torch.no_grad():
            victim(x)

    def observing(dtype: torch.dtype) -> Callable[[], None]:
        def see(seen: Seen) -> None:
            seen.scores(dtype)

        def call() -> None:
            with torch.no_grad(), AttentionTap(layers, observe=see):
                victim(x)

        return call

    ways = {
        "plain forward": plain,
        "observed in fp32": observing(torch.float32),
        "observed in fp64": observing(torch.float64),
        "plain step": lambda: raw_steps(victim, victim, x, y),
        "rescaled step": lambda: raw_steps(view, victim, x, y),
    }
    seconds = interleaved(ways, args.rounds)
    print(conditions(args.threads))
    print(f"tiny224, batch {BATCH}, {len(layers)} attention layers, all fused: {all(la.fused for la in layers.layers)}")
    for name, base in (
        ("observed in fp32", "plain forward"),
        ("observed in fp64", "plain forward"),
        ("rescaled step", "plain step"),
    ):
        ratios = sorted(a / b for a, b in zip(seconds[name], seconds[base]))
        print(
            f"{name}: {1e3 * median(seconds[name]):.0f} ms over {1e3 * median(seconds[base]):.0f} ms, "
            f"{median(ratios):.3f}x (rounds: {', '.join(f'{r:.3f}' for r in ratios)})"
        )


if __name__ == "__main__":
    main()
