"""TORA-ViT's claims on CIFAR-10, with the embedded ViTs as frozen backbones.

Asked are (a) whether lambda trades clean for robust accuracy monotonically, (b) whether the gated fusion does better than
heads alone, a single adapter and AdapterFusion, and (c) whether the joint prediction does better than either head. All
methods see as many images, and all verdicts are on the same test images.

    python benchmarks/train/tora_study.py --data-dir CIFAR10 --out runs/tora-study
    python benchmarks/train/tora_study.py --out runs/toy --toy        # a smoke test on embedded images

One process, one thread; the same command resumes. Cells come in the order of what they tell most, and OUT/study.md
is written after each of them. `--train`, `--test` and `--epochs` make a
larger study.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from vitattack import evaluate
from vitattack.core.percent import at_least, at_most
from vitattack.models.zoo.file_options import FileOptions
from vitattack.records.result import Result
from vitattack.records.stats import Accuracy, Paired, paired_test
from vitattack.train.courses import load_courses
from vitattack.train.run_courses import train_courses
from vitattack.train.run_folder import TrainedRun
from vitattack.train.session_options import SessionOptions

BUDGETS = {"tiny-vit": "linf:8/255", "tiny-vit-standard": "linf:2/255"}
LAMBDAS = ("0.1", "0.3", "0.5", "0.7", "0.9")
METHODS = {"TORA": "tora-tiny", "heads only": "tora-head-only-tiny", "single adapter": "tora-single-adapter-tiny"}
METHODS["AdapterFusion"] = "tora-adapter-fusion-tiny"
ATTACKS = {"FGSM": "fgsm(stop=never)", "PGD": "pgd(steps=5, step=0.5, stop=never)", "auto": "auto"}
FAST = ("FGSM", "PGD")


@dataclass(frozen=True)
class Study:
    """Where everything is, and how large it is."""

    out: Path
    data_dir: Path | None
    train: str
    test: str
    epochs: int  # of phase 1, and half as many of phase 2
    shares: tuple[str, ...] = LAMBDAS


@dataclass(frozen=True)
class Cell:
    """One model under one attack."""

    backbone: str
    seed: int
    method: str
    share: str  # lambda; empty for the backbone itself
    head: str
    attack: str


def trained(study: Study, cell: Cell) -> TrainedRun:
    """The last phase of a method at one lambda; phase 1 is shared by its name."""
    second = max(1, study.epochs // 2)
    recipe = METHODS[cell.method]
    phases = len(load_courses(recipe)[0].phases)
    epochs = [f"epochs={study.epochs}", f"then.epochs={second}"] if phases == 2 else [f"epochs={study.epochs + second}"]
    courses = load_courses(
        recipe,
        [
            f"init={cell.backbone}",
            f"threat={BUDGETS[cell.backbone]}",
            f"data={study.train}",
            "batch_size=64",
            "optimiser=adamw(lr=1e-3, decay=0.1)",
            f"seed={cell.seed}",
            f"lambda={cell.share}",
            "validation=0",
            "probe=0",
            *epochs,
        ],
    )
    (done,) = train_courses(
        courses,
        out=study.out / "models",
        data_dir=study.data_dir,
        device="cpu",
        threads=1,
        options=SessionOptions(keep_going=True, save_every=8, workers=0),
    )
    return done.final


def measured(study: Study, cell: Cell) -> Result:
    model, options = cell.backbone, None
    if cell.share:
        run = trained(study, cell)
        recipe = run.result["recipe"]
        arguments = {**recipe["arch_kwargs"], "head": cell.head}
        model, options = str(run.last), FileOptions(recipe["arch"], arguments, normalize="cifar10")
    evaluation = evaluate(
        model,
        ATTACKS[cell.attack],
        threat=BUDGETS[cell.backbone],
        data=study.test,
        options=options or FileOptions(),
        data_dir=study.data_dir,
        threads=1,
        jobs=1,
        out=study.out / "evaluations",
    )
    return evaluation.results[0]


def stages(shares: tuple[str, ...], backbones: tuple[str, ...], seeds: tuple[int, ...]) -> Iterator[list[Cell]]:
    """Everything there is to measure, in the order of what it tells most."""
    for seed in seeds:
        later = []
        for backbone in backbones:
            base = [Cell(backbone, seed, "none", "", "", "")] if seed == seeds[0] else []
            joint = [Cell(backbone, seed, "TORA", share, "joint", "") for share in shares]
            heads = [replace(cell, head=head) for cell in joint for head in ("acc", "rob")]
            ends = (joint[-1], joint[0])
            rivals = [replace(cell, method=name) for cell in ends for name in METHODS if name != "TORA"]
            outer = [cell for cell in heads if cell.share in (shares[0], shares[-1])]
            inner = [cell for cell in heads if cell not in outer]
            yield _under(FAST, [*base, *joint, *outer, *rivals, *inner])
            later.append(_under(("auto",), [*base, *ends, *rivals, *joint[1:-1]]))
        yield from later
    for seed in seeds:
        for backbone in backbones:
            heads = [Cell(backbone, seed, "TORA", share, head, "") for share in shares for head in ("acc", "rob")]
            yield _under(("auto",), heads)


def _under(attacks: tuple[str, ...], cells: list[Cell]) -> list[Cell]:
    return [replace(cell, attack=attack) for cell in cells for attack in attacks]


Found = dict[Cell, Result]


def questions(found: Found) -> Iterator[tuple[str, Cell, Cell]]:
    """Pairs of models to compare, by the question they answer."""
    models = list(dict.fromkeys(replace(cell, attack="") for cell in found))
    joint = [cell for cell in models if cell.method == "TORA" and cell.head == "joint"]
    for low, high in itertools.combinations(joint, 2):
        if (low.backbone, low.seed) == (high.backbone, high.seed) and low.share < high.share:
            yield "a", low, high
    for cell in joint:
        same = [other for other in models if replace(other, method="TORA") == cell and other != cell]
        yield from (("b", cell, other) for other in same)
    for cell in joint:
        yield from (("c", cell, other) for head in ("acc", "rob") if (other := replace(cell, head=head)) in models)
    for cell in joint:
        base = Cell(cell.backbone, next(each.seed for each in models if not each.share), "none", "", "", "")
        if base in models:
            yield "backbone", cell, base


def paired(one: Result, two: Result, on: str) -> Paired:
    """An exact test on the same images, of clean predictions or of what an attack leaves."""
    right = [
        {
            record.index: record.status == "robust" if on != "clean" else record.status != "clean_wrong"
            for record in records
        }
        for records in (one.records, two.records)
    ]
    return paired_test(*right)


def tables(found: Found) -> str:
    """Markdown of what was measured so far, with 95 % intervals and exact McNemar tests on the same images."""
    lines = [
        "| backbone | seed | method | lambda | head | clean | FGSM | PGD | auto |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in dict.fromkeys(replace(cell, attack="") for cell in found):
        under = {name: found.get(replace(cell, attack=name)) for name in ATTACKS}
        clean = next(each for each in under.values() if each is not None).clean
        shown = [_share(clean), *("" if each is None else _share(each.robust) for each in under.values())]
        lines.append(f"| {' | '.join([cell.backbone, str(cell.seed), cell.method, cell.share, cell.head, *shown])} |")
    lines += [
        "",
        "| question | backbone | seed | A | B | on | A only | B only | p |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for question, one, two in questions(found):
        for on in ("clean", *ATTACKS):
            attack = "PGD" if on == "clean" else on
            a, b = found.get(replace(one, attack=attack)), found.get(replace(two, attack=attack))
            if a is not None and b is not None:
                test = paired(a, b, on)
                names = [" ".join(filter(None, (each.method, each.share, each.head))) for each in (one, two)]
                cells = [question, one.backbone, str(one.seed), *names, on, str(test.only_first), str(test.only_second)]
                lines.append(f"| {' | '.join(cells)} | {test.p_value:.3g} |")
    return "\n".join(lines) + "\n"


def _share(rate: Accuracy) -> str:
    return f"{rate.accuracy:.1%} ({at_least(rate.low)}-{at_most(rate.high)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("VITATTACK_DATA_DIR"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--train", type=int, default=3072, help="training images, drawn at random")
    parser.add_argument("--test", type=int, default=256, help="the first test images")
    parser.add_argument("--epochs", type=int, default=2, help="of phase 1; phase 2 has half as many")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--backbones", nargs="+", choices=BUDGETS, default=list(BUDGETS))
    parser.add_argument("--toy", action="store_true", help="run on a few embedded images, as a smoke test")
    args = parser.parse_args()
    study = Study(
        args.out, args.data_dir, f"cifar10-train[random:{args.train}:0]", f"cifar10[:{args.test}]", args.epochs
    )
    if args.toy:
        study = Study(args.out, None, "cifar10-calib[:64]", "cifar10-demo[:4]", 1, ("0.1", "0.9"))
    found: Found = {}
    for number, stage in enumerate(stages(study.shares, tuple(args.backbones), tuple(args.seeds))):
        for cell in stage if number == 0 or not args.toy else ():
            found[cell] = measured(study, cell)
            print(cell, f"{found[cell].clean.accuracy:.1%} clean, {found[cell].robust.accuracy:.1%} left", flush=True)
            (args.out / "study.md").write_text(tables(found))


if __name__ == "__main__":
    main()
