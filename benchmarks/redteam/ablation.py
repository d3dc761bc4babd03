"""What each stage of `auto` buys on the red team's rows for tuning: survivors and passes with a stage removed or changed.

    python benchmarks/redteam/ablation.py --out runs/redteam-ablation
    python benchmarks/redteam/ablation.py --out runs/redteam-ablation --only vit-trades --variants "targets of 5"

A cell is survivors, how many more (+) or fewer (-) there are than with the whole attack, and passes per survivor; `known` counts
images that something known breaks. Passes are those of the search, without the second pass.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from rows import RedTeamRow, read_rows

sys.path.insert(0, str(Path(__file__).parents[1]))
from auto_ablation import cell, figures, run, standing
from auto_variants import variants

from vitattack.core.table import Table
from vitattack.data import from_tensors
from vitattack.threats.base import parse_threat
from vitattack.threats.lp import LpBall


def ablated(row: RedTeamRow, wanted: tuple[str, ...], out: Path) -> dict[str, str]:
    """A cell per variant."""
    ball = parse_threat(row.threat)
    assert isinstance(ball, LpBall)
    made = {name: attack for name, attack in variants(ball).items() if name == "whole" or name.startswith(wanted)}
    found = run(row.victim(out), made, ball, from_tensors(*row.images(out)), out / row.name)
    best = set(json.loads(row.verdict_file.read_text())["best"])
    return {name: f"{cell(figures(name, found))}, known {len(standing(found[name]) - best)}" for name in made}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/redteam-ablation"))
    parser.add_argument("--only", nargs="*", default=())
    parser.add_argument("--variants", nargs="*", default=[""], help="by their first letters; the whole is always run")
    args = parser.parse_args()
    torch.set_num_threads(1)
    columns = {
        row.name: ablated(row, tuple(args.variants), args.out)
        for row in read_rows()
        if not row.held_out and row.verdict_file.exists() and (not args.only or row.name in args.only)
    }
    names = dict.fromkeys(name for cells in columns.values() for name in cells)
    rows = [(name, *(cells.get(name, "-") for cells in columns.values())) for name in names]
    print(Table("survivors / passes per survivor / per image that is right", ("variant", *columns), rows).markdown())


if __name__ == "__main__":
    main()
