"""Train the red team's models: small, quick, of many kinds, and with budgets from 2 to 16/255 and from 0.25 to 2 in l2.

    python benchmarks/redteam/train.py --data-dir DATA                    (about an hour on one core; resumes if stopped)
    python benchmarks/redteam/train.py --data-dir DATA --only swin-pgd

Every model sees the same 12,000 images for 10 epochs, or as many as its row says; inner attacks take two steps. The
last weights are copied, in float16, to benchmarks/redteam/weights.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Mapping
from pathlib import Path

import yaml
from families import FAMILIES
from pairs import write_pairs

from vitattack.train.recipe import Recipe
from vitattack.train.run_recipe import train
from vitattack.train.session_options import SessionOptions

HERE = Path(__file__).parent
IMAGES, HELD_OUT, EPOCHS = 12_000, 500, 10
INNER = "pgd(steps=2, step=0.75{loss})"
OBJECTIVES = {
    "standard": "standard",
    "fgsm": "fgsm",
    "pgd_at": f"pgd_at(inner={INNER.format(loss='')})",
    "trades": f"trades(beta=6, inner={INNER.format(loss=', loss=kl_to')})",
    "mart": f"mart(beta=5, inner={INNER.format(loss='')})",
}


def read_rows() -> list[Mapping[str, str]]:
    rows: list[Mapping[str, str]] = yaml.safe_load((HERE / "models.yaml").read_text())
    return rows


def recipe_of(row: Mapping[str, str], data: str) -> Recipe:
    family, classes = FAMILIES[row["family"]], int(row.get("classes", 10))
    return Recipe(
        name=row["name"],
        summary="A model of the red team",
        arch=family.arch,
        arch_kwargs={**family.kwargs, "num_classes": classes},
        data=data,
        validation=HELD_OUT,
        augment=("crop", "flip") if classes == 10 else (),
        threat=row["threat"],
        objective=OBJECTIVES[row["objective"]],
        hooks=("grad_clip(1.0)",),
        optimiser="adamw(lr=3e-3, decay=0.1)",
        rate="cosine(warmup=0.2, start=0.04)",
        epochs=int(row.get("epochs", EPOCHS)),
        export="fp16",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/redteam"))
    parser.add_argument("--only", nargs="*", default=())
    args = parser.parse_args()
    pairs = write_pairs("cifar10-train", IMAGES + HELD_OUT, 0, args.out / "pairs.npz", args.data_dir)
    for row in read_rows():
        if args.only and row["name"] not in args.only:
            continue
        data = f"cifar10-train[random:{IMAGES + HELD_OUT}:0]" if "classes" not in row else f"npz:{pairs.absolute()}"
        trained = train(
            recipe_of(row, data),
            out=args.out,
            data_dir=args.data_dir,
            threads=1,
            options=SessionOptions(keep=1, keep_going=True),
        )
        (HERE / "weights").mkdir(exist_ok=True)
        shutil.copyfile(trained.folder / "last.safetensors", HERE / "weights" / f"{row['name']}.safetensors")
        print(row["name"], trained.epochs[-1], flush=True)


if __name__ == "__main__":
    main()
