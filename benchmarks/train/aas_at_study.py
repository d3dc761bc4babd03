"""AAS-AT against its base at equal budget: 16 small models and an untrained one, in one resumable script.

    python benchmarks/train/aas_at_study.py --data-dir DATA --out runs/aas-at-study
    python benchmarks/train/aas_at_study.py --out runs/toy --toy

Objectives pgd_at and trades; variants base, aas_at, random (scales drawn from the same prior without a search) and extra
(more epochs than all searches of aas_at cost together); two seeds. Evaluated by worst(apgd_ce, apgd_t) on 500 test images
with Wilson intervals, and exact McNemar tests of every variant against its base on the same images. It prints the
table of the study as it comes out.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

from vitattack import evaluate
from vitattack.core.percent import at_least, at_most
from vitattack.models.zoo.file_options import FileOptions
from vitattack.records.result import Result
from vitattack.records.stats import mcnemar
from vitattack.train.recipe import Recipe
from vitattack.train.run_folder import TrainedRun
from vitattack.train.run_recipe import train
from vitattack.train.session_options import SessionOptions

EVERY, BATCHES, STEPS, INNER = 3, 4, 10, 3
VARIANTS = ("base", "aas_at", "random", "extra")
EVENT = f"every={EVERY}, batches={BATCHES}, steps={STEPS}"


@dataclass(frozen=True)
class Size:
    """Size of the study; the toy only shows that it runs."""

    images: int = 10_000
    epochs: int = 15
    test: str = "cifar10[:500]"
    data: str = "cifar10-train"
    attack: str = "worst(apgd_ce, apgd_t)"
    seeds: tuple[int, ...] = (0, 1)
    arch: tuple[tuple[str, int], ...] = (("embed_dim", 48), ("depth", 4), ("num_heads", 4))
    batch_size: int = 128


TOY = Size(
    600,
    11,
    "cifar10-demo[random:20:1]",
    "cifar10-demo",
    "pgd(steps=2)",
    (0,),
    (("embed_dim", 16), ("depth", 2), ("num_heads", 2)),
    100,
)


def recipe_of(size: Size, objective: str, variant: str, seed: int) -> Recipe:
    inner = f"pgd(steps={INNER}, step=0.5" + (", loss=kl_to)" if objective == "trades" else ")")
    hooks = {"aas_at": (f"aas_at({EVENT})",), "random": (f"aas_at({EVENT}, random=True)",)}.get(variant, ())
    held_out = size.images // 20
    return Recipe(
        name=f"{objective}-{variant}-{seed}",
        summary="AAS-AT study",
        arch="small:tiny_vit_32",
        arch_kwargs=dict(size.arch),
        data=f"{size.data}[random:{size.images + held_out}:0]",
        validation=held_out,
        augment=("crop", "flip"),
        objective=f"{objective}(inner={inner})",
        hooks=(*hooks, "grad_clip(1.0)"),
        optimiser="adamw(lr=2e-3, decay=0.1)",
        rate="cosine(warmup=0.15, start=0.04)",
        epochs=size.epochs + (extra_epochs(size) if variant == "extra" else 0),
        batch_size=size.batch_size,
        precision="bf16",
        seed=seed,
    )


def extra_epochs(size: Size) -> int:
    """Whole epochs that cost at least as many passes as all searches, at one pass per search step and INNER + 2 per batch."""
    events = (size.epochs - 1) // EVERY
    searches = events * BATCHES * (STEPS + 3)  # features of the reference, clean accuracy before and after
    return math.ceil(searches / (size.images // size.batch_size * (INNER + 2)))


def check_events(trained: TrainedRun) -> None:
    changed = max(row.get("aas_changed", 0) for row in trained.epochs)
    if changed < 3:
        raise SystemExit(f"{trained.folder}: only {changed:.0f} events changed the scales, the study needs 3")


def evaluate_last(size: Size, trained: TrainedRun, data_dir: Path | None, out: Path) -> Result:
    options = FileOptions("small:tiny_vit_32", dict(size.arch), normalize="cifar10")
    evaluation = evaluate(
        str(trained.last),
        size.attack,
        threat="linf:8/255",
        data=size.test,
        options=options,
        data_dir=data_dir,
        threads=1,
        out=out / "evaluations",
    )
    return evaluation.results[0]


def row_of(name: str, result: Result, base: Result | None) -> dict[str, object]:
    clean, robust = result.clean, result.robust
    row: dict[str, object] = {
        "model": name,
        "n": result.n,
        "clean": [clean.accuracy, clean.low, clean.high],
        "robust": [robust.accuracy, robust.low, robust.high],
    }
    if base is not None:
        test = mcnemar(result.records, base.records)
        row["against base"] = {"more": test.only_first, "less": test.only_second, "p": test.p_value}
    return row


def table_line(row: dict[str, object]) -> str:
    def interval(key: str) -> str:
        value, low, high = row[key]  # type: ignore[misc]
        return f"{value:.1%} ({at_least(low)}%-{at_most(high)}%)"

    test = row.get("against base")
    words = "" if test is None else f"+{test['more']} -{test['less']}, p={test['p']:.3f}"  # type: ignore[index]
    return f"| {row['model']} | {row['n']} | {interval('clean')} | {interval('robust')} | {words} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--toy", action="store_true", help="run on a few embedded images, as a smoke test")
    args = parser.parse_args()
    size = TOY if args.toy else Size()

    def run(recipe: Recipe) -> TrainedRun:
        return train(
            recipe,
            out=args.out / "models",
            data_dir=args.data_dir,
            device="cpu",
            threads=1,
            options=SessionOptions(keep_going=True),
        )

    rows = []
    untrained = run(replace(recipe_of(size, "pgd_at", "base", 0), name="untrained", epochs=0))
    rows.append(row_of("untrained", evaluate_last(size, untrained, args.data_dir, args.out), None))
    for objective in ("pgd_at", "trades"):
        for seed in size.seeds:
            base: Result | None = None
            for variant in VARIANTS:
                trained = run(recipe_of(size, objective, variant, seed))
                if variant in ("aas_at", "random"):
                    check_events(trained)
                result = evaluate_last(size, trained, args.data_dir, args.out)
                row = row_of(f"{objective} {variant} seed {seed}", result, base)
                row["hours"] = trained.result["hours"]
                base = result if variant == "base" else base
                rows.append(row)
                print(table_line(row), flush=True)
    (args.out / "study.json").write_text(json.dumps(rows, indent=1))
    print("\n| model | n | clean | robust | against base (paired, exact McNemar) |\n|---|---|---|---|---|")
    print("\n".join(map(table_line, rows)))


if __name__ == "__main__":
    main()
