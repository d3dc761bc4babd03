"""Where Patch-Fool puts its patch, against every other place of the same size, image by image.

    python benchmarks/patch_places.py --out runs/places                               two models; resumes if stopped
    python benchmarks/patch_places.py --out runs/places --models tiny-vit --steps 50

The same attack with the same starts meets each image at every place of the grid, and at the places chosen by attention, by the
gradient, by a short search and at random. What a random place is worth is the mean over all of them, and the best of all places
fools whatever any place fools. The choice by attention is compared with the others by McNemar's test on the images, and with a
random choice of a place for each image by the exact distribution of the images that it would fool.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from pathlib import Path

import torch

from vitattack import evaluate
from vitattack.core.percent import percent
from vitattack.core.table import Table
from vitattack.records.record import SampleRecord
from vitattack.records.stats import paired_test
from vitattack.threats.base import parse_threat
from vitattack.threats.patch import Patch

CHOSEN = {"attention": "attention", "gradient": "gradient", "search of 16": "search", "one at random": "random"}
SIDE = 32  # of the embedded images
Corner = tuple[int, int]
Fooled = Mapping[int, bool]  # per image that the model gets right


def fooled(records: Sequence[SampleRecord]) -> dict[int, bool]:
    return {r.index: r.status == "fooled" for r in records if r.clean == r.label}


def chance(shares: Collection[float]) -> list[float]:
    """The probability of every number of successes, from 0 on, of independent trials with these probabilities."""
    found = [1.0]
    for share in shares:
        found = [stay * (1 - share) + rise * share for stay, rise in zip([*found, 0.0], [0.0, *found], strict=True)]
    return found


def p_of_chance(shares: Collection[float], count: int) -> float:
    """Twice the smaller tail of the number of successes."""
    found = chance(shares)
    return min(1.0, 2 * min(sum(found[: count + 1]), sum(found[count:])))


def places_table(title: str, at: Mapping[Corner, Fooled], chosen: Mapping[str, Fooled]) -> Table:
    """A row per way to choose a place; the first is by attention."""
    attention = next(iter(chosen.values()))
    shares = {image: sum(each[image] for each in at.values()) / len(at) for image in attention}
    best = {image: share > 0 for image, share in shares.items()}
    rows = []
    for name, each in {**chosen, "best of all": best}.items():
        test = paired_test(_standing(attention), _standing(each))
        against = ("", "") if each is attention else (f"{test.only_second} / {test.only_first}", f"{test.p_value:.2g}")
        rows.append((name, f"{sum(each.values())}", percent(sum(each.values()) / len(each)), *against))
    mean, count = sum(shares.values()), sum(attention.values())
    rows.append(
        (
            "any, in the mean",
            f"{mean:.1f}",
            percent(mean / len(shares)),
            "",
            f"{p_of_chance(shares.values(), count):.2g}",
        )
    )
    columns = ("place", f"fooled of {len(attention)}", "share", "attention fools alone / not", "p")
    return Table(title, columns, rows)


def _standing(each: Fooled) -> dict[int, bool]:
    return {image: not fell for image, fell in each.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", nargs="*", default=["tiny-vit", "tiny-vit-standard"])
    parser.add_argument("--threat", default="patch:1tokens@4px")
    parser.add_argument("--limit", type=int, default=48)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    threat = parse_threat(args.threat)
    if not isinstance(threat, Patch):
        raise SystemExit(f"{args.threat} has no place: write a patch such as patch:1tokens@4px")
    corners = list(product(*(lines.tolist() for lines in threat.lines(torch.empty(1, 3, SIDE, SIDE)))))
    places = [*CHOSEN.values(), *(f"at({top}, {left})" for top, left in corners)]
    attacks = [f"patch_fool(place={place}, steps={args.steps})" for place in places]
    for model in args.models:
        evaluation = evaluate(
            model,
            attacks,
            threat=threat,
            data=f"cifar10-demo[:{args.limit}]",
            batch_size=args.limit,
            threads=1,
            jobs=1,
            out=args.out,
        )
        found = [fooled(result.records) for result in evaluation.results]
        chosen = dict(zip(CHOSEN, found, strict=False))
        at = dict(zip(corners, found[len(CHOSEN) :], strict=True))
        title = f"{model}, {args.threat}, {args.steps} steps, first {args.limit} images"
        print(places_table(title, at, chosen).markdown(), flush=True)


if __name__ == "__main__":
    main()
