"""Attacks through uniformly scaled attention, judged on the scaled and on the plain model: both verdicts differ.

    python benchmarks/aas_counting.py [--model tiny-vit] [--limit 200] [--threads 1]

Also prints how far the ten raw steps of Algorithm 1 move its scales from their random start.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch

import vitattack
from vitattack.attacks.aas.climb import LITERAL, Climb
from vitattack.attacks.aas.report import referee
from vitattack.core.rng import SampleRng
from vitattack.data import load_data
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.zoo.load import load_model

FACTORS = (1.0, 0.5, 0.1, 0.01, 10.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny-vit")
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    victim = load_model(args.model, torch.device("cpu")).victim
    data = load_data("cifar10-calib")
    x, y = data.read(data.rows)
    layers = attention_layers(victim, x)
    print("| search | mean gradient of its distance | largest move of a scale from its noise |\n| --- | --: | --: |")
    for name, search in (("Algorithm 1 (lpips, raw)", LITERAL), ("aas (unit, Adam)", Climb(restarts=1))):
        (found,) = search(victim, layers, x, y, rng=SampleRng(0, (0,)))
        (noise,) = replace(search, steps=0)(victim, layers, x, y, rng=SampleRng(0, (0,)))
        print(f"| {name} | {found.gradient:.2g} | {float((found.scales - noise.scales).abs().max()):.2g} |")

    print("\n| scale | clean, scaled | RA counted on scaled | same examples on plain | RA of both together, plain |")
    print("| --- | --: | --: | --: | --: |")
    texts = [f"scale({factor:g}, pgd)" for factor in FACTORS]
    settings = {"limit": args.limit, "threads": args.threads}
    for factor, result in zip(FACTORS, vitattack.evaluate(args.model, texts, **settings).results):
        found = referee(result)
        assert found is not None
        shown = (found.clean_scaled, found.scaled_protocol, found.scaled_examples, found.union)
        print(f"| {factor:g} | " + " | ".join(f"{100 * a.accuracy:.1f}" for a in shown if a is not None) + " |")
    for text in ("pgd(loss=margin)", "restarts(2, pgd)"):
        worst = vitattack.evaluate(args.model, text, **settings).worst_case
        print(f"\n{text}: RA {worst.accuracy:.1%}")


if __name__ == "__main__":
    main()
