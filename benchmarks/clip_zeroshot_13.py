"""RobustVLM's mean over 13 zero-shot data sets for models of the zoo, beside the published means.

    python benchmarks/clip_zeroshot_13.py robustvlm/fare4-clip --data-dir DATA --out runs/clip

DATA holds `clip-benchmark/wds_cars` and the others as the hub has them (or leave it out to fetch them). Stopped, it goes on
where it was. `--limit 100` takes the first images of each draw, `--only cars pets` some of the sets.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import vitattack
from vitattack.data.catalogue import DATA_SETS
from vitattack.data.sharded_sets import SHARDED_SETS
from vitattack.models.zoo.catalogue import zoo_entry
from vitattack.models.zoo.file_options import FileOptions

ATTACKS = ["apgd(loss=ce)", "apgd(loss=dlr_targeted)"]
Accuracies = dict[str, float]  # in per cent: "clean", and robust ones by their budget


def of_set(model: str, name: str, budgets: list[int], **settings: Any) -> Accuracies:
    """Clean and robust accuracy on one of the sets, with its own class names and prompts."""
    entry = DATA_SETS[f"wds-{name}"]
    texts: dict[str, Any] = {"class_names": f"wds-{name}", "prompts": f"wds-{name}"}
    if entry.px:  # attacked at its own resolution, and enlarged inside the model
        texts["native_size"] = entry.px
    found: Accuracies = {}
    for budget in budgets:
        evaluation = vitattack.evaluate(
            model,
            ATTACKS if entry.num_classes > 2 else ATTACKS[:1],
            threat=f"linf:{budget}/255",
            data=f"clip-zeroshot-13/{name}",
            options=FileOptions(arch_kwargs=texts),
            **settings,
        )
        found["clean"] = 100 * evaluation.clean.accuracy
        found[f"linf:{budget}/255"] = 100 * evaluation.worst_case.accuracy
    return found


def published(model: str) -> Accuracies:
    """The means that RobustVLM reports of a model."""
    means = [number for number in zoo_entry(model).reported if "mean of the 13" in number.protocol]
    return {next((word.strip(",") for word in n.protocol.split() if "linf" in word), "clean"): n.value for n in means}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--eps", type=int, nargs="+", default=[2, 4], metavar="N", help="budgets of N/255")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    given = parser.parse_args()
    names = given.only or [name.removeprefix("wds-") for name in SHARDED_SETS]
    columns = ["clean", *(f"linf:{budget}/255" for budget in given.eps)]
    for model in given.models:
        print_row(model, dict(zip(columns, columns, strict=True)), columns)
        rows = []
        for name in names:
            rows.append(of_set(model, name, given.eps, data_dir=given.data_dir, out=given.out, limit=given.limit))
            print_row(f"  {name}", rows[-1], columns)
        print_row(f"  mean of {len(rows)}", {column: mean(row[column] for row in rows) for column in columns}, columns)
        print_row("  published, mean of 13", published(model), columns)


def print_row(title: str, cells: Mapping[str, float | str], columns: list[str]) -> None:
    shown = (cells.get(column, "") for column in columns)
    print(f"{title:32}" + "".join(f"{c:>14}" if isinstance(c, str) else f"{c:14.1f}" for c in shown), flush=True)


if __name__ == "__main__":
    main()
