"""`auto` against AutoAttack on models with masked gradients: survivors, and the doubts that `auto` reports.

    python benchmarks/auto_masking.py --out runs/masking [--limit 128] [--batch-size 64]
    python benchmarks/auto_masking.py --out runs/masking --models tiny-vit+quantiser tiny-vit-saturated

A fault is logits x 1e3, attention scores x 1e3, or a quantiser in front whose gradient is zero. Only the verdict counts
here: images that AutoAttack breaks must fall, or the result must say that it cannot be trusted. Both runs are kept in
--out and resume where they were stopped; AutoAttack takes up to half an hour per model. For a smoke run, give shorter
attacks with --against and --attack.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from masked_gradients import load_masked

import vitattack
from vitattack.records.result import Result
from vitattack.records.stats import mean_passes

MODELS = ("tiny-vit+logits", "tiny-vit+attention", "tiny-vit+quantiser", "tiny-vit-saturated")


def compared(ours: Result, theirs: Result) -> dict[str, Any]:
    """Compare two runs on the same images."""
    broken = {r.index for r in theirs.records if r.status == "fooled"}
    left = [r.index for r in ours.records if r.status == "robust"]
    return {
        "clean correct": ours.clean.correct,
        "autoattack leaves": theirs.robust.correct,
        "auto leaves": len(left),
        "exceptions": [index for index in left if index in broken],
        "passes": {name: round(sum(mean_passes(r.records)), 1) for name, r in (("autoattack", theirs), ("auto", ours))},
        "escalated": any("spent full" in r.evidence for r in ours.records),
        "doubts": list(ours.doubts),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS, metavar="MODEL[+FAULT]")
    parser.add_argument("--out", type=Path, required=True, help="folder that keeps both runs")
    parser.add_argument("--data", default="cifar10-demo")
    parser.add_argument("--limit", type=int, default=128)
    parser.add_argument("--threat", default="linf:8/255")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--attack", default="auto")
    parser.add_argument("--against", default="autoattack_ref")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    settings = {name: getattr(args, name) for name in ("data", "limit", "threat", "batch_size", "threads", "out")}
    found = {}
    for model in args.models:
        ours, theirs = (
            vitattack.evaluate(load_masked(model), text, **settings).results[0] for text in (args.attack, args.against)
        )
        found[model] = compared(ours, theirs)
    print(f"{args.threat}, {args.limit} images of {args.data}; passes are per image that is right when clean\n")
    print("| model | right when clean | AutoAttack leaves | auto leaves | only auto leaves | passes | escalated |")
    print("| --- | --: | --: | --: | --: | --: | --- |")
    for model, told in found.items():
        cost = f"{told['passes']['autoattack']:,.0f} / {told['passes']['auto']:,.0f}"
        cells = [told["clean correct"], told["autoattack leaves"], told["auto leaves"], len(told["exceptions"]), cost]
        print(f"| {model} | {' | '.join(map(str, cells))} | {'yes' if told['escalated'] else 'no'} |")
    for model, told in found.items():
        for index in told["exceptions"]:
            print(f"{model}: auto leaves image {index}, which AutoAttack breaks")
        for doubt in told["doubts"]:
            print(f"{model}, auto says: {doubt}")
        if told["exceptions"] and not told["doubts"]:
            print(f"{model}: AUTO IS WRONG AND SAYS NOTHING")
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
