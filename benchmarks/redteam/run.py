"""The red team against `auto`: survivors, doubts and passes per row, beside AutoAttack's and the best known.

    python benchmarks/redteam/run.py --out runs/redteam                        every row with a stored verdict; resumes if stopped
    python benchmarks/redteam/run.py --out runs/redteam --rows tuning          rows that tuning may look at
    python benchmarks/redteam/run.py --out runs/redteam --attack 'auto(steps=10)' --only vit-trades

`missed` counts images that `auto` leaves and AutoAttack, or anything known, breaks; `alone` those that fall to `auto` and not
to AutoAttack, `tied` the near ties left, which a note counts. A row is silent if anything is missed and no doubt is shown.
R2 is AutoAttack's passes over ours, on images that survive both. A second table per part says what each stage broke.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rows import RedTeamRow, read_rows

from vitattack import evaluate
from vitattack.attacks.auto.numbering import TIES
from vitattack.attacks.auto.report import StageYield, auto_report
from vitattack.core.table import Table


@dataclass(frozen=True)
class RowOutcome:
    """A run of `auto` on a row beside the stored verdicts on it."""

    row: RedTeamRow
    correct: int
    left: frozenset[int]
    autoattack: frozenset[int]
    best: frozenset[int]
    their_passes: float
    passes: float
    escalated: bool
    fidelity: float | None
    doubts: tuple[str, ...]
    bought: tuple[StageYield, ...]
    tied: frozenset[int]  # near ties that are left

    @property
    def missed(self) -> int:
        return len(self.left - self.autoattack)

    @property
    def missed_of_best(self) -> int:
        return len(self.left - self.best)

    @property
    def alone(self) -> frozenset[int]:
        return self.autoattack - self.left

    @property
    def silent(self) -> bool:
        return bool(self.left - self.best) and not self.doubts

    @property
    def ratio(self) -> float | None:
        return self.their_passes / self.passes if self.passes else None

    def json(self) -> dict[str, Any]:
        return {
            "name": self.row.name,
            "threat": self.row.threat,
            "held_out": self.row.held_out,
            "correct": self.correct,
            "auto": len(self.left),
            "autoattack": len(self.autoattack),
            "best": len(self.best),
            "missed": sorted(self.left - self.autoattack),
            "missed_of_best": sorted(self.left - self.best),
            "alone": sorted(self.alone),
            "tied": sorted(self.tied),
            "passes": round(self.passes, 1),
            "autoattack_passes": self.their_passes,
            "escalated": self.escalated,
            "fidelity": self.fidelity,
            "doubts": list(self.doubts),
            "silent": self.silent,
            "stages": [stage.__dict__ for stage in self.bought],
        }


def outcome(row: RedTeamRow, attack: str, out: Path, seed: int) -> RowOutcome:
    known = json.loads(row.verdict_file.read_text())
    settings: dict[str, Any] = {
        "threat": row.threat,
        "out": row.store(out),
        "threads": 1,
        "device": "cpu",
        "seed": seed,
    }
    (result,) = evaluate(row.victim(out), attack, data=row.images(out), **settings).results
    standing = frozenset(r.index for r in result.records if r.status == "robust")
    fallen = frozenset(r.index for r in result.records if r.status == "fooled")
    autoattack = frozenset(known["autoattack"])
    return RowOutcome(
        row,
        known["correct"],
        standing,
        autoattack,
        frozenset(known["best"]) - fallen,
        known["passes"],
        _mean([r.forwards + r.backwards for r in result.records if r.index in standing & autoattack]),
        any("spent full" in r.evidence for r in result.records),
        min((float(r.evidence["fidelity"]) for r in result.records if "fidelity" in r.evidence), default=None),
        result.doubts,
        auto_report(result.records).bought,
        frozenset(r.index for r in result.records if r.index in standing and r.evidence.get(f"spent {TIES}")),
    )


def _mean(values: Sequence[int]) -> float:
    return statistics.fmean(values) if values else 0.0


def table(title: str, outcomes: Sequence[RowOutcome]) -> Table:
    heads = (
        "row",
        "threat",
        "right",
        "auto",
        "AA",
        "best",
        "missed",
        "alone",
        "passes",
        "R2",
        "fidelity",
        "doubts",
        "silent",
    )
    return Table(title, heads, [_line(each) for each in outcomes])


def _line(found: RowOutcome) -> tuple[str, ...]:
    counts = found.correct, len(found.left), len(found.autoattack), len(found.best)
    ratio = "-" if found.ratio is None else f"{found.ratio:.1f}x" + (" escalated" if found.escalated else "")
    return (
        found.row.name,
        found.row.threat,
        *map(str, counts),
        f"{found.missed}, {found.missed_of_best}",
        str(len(found.alone)),
        f"{found.passes:.0f}",
        ratio,
        "-" if found.fidelity is None else f"{found.fidelity:.2f}",
        str(len(found.doubts)),
        "SILENT" if found.silent else "",
    )


def yields(outcomes: Sequence[RowOutcome]) -> Table:
    """What each stage broke on all rows together, and its share of the passes."""
    bought = [stage for each in outcomes for stage in each.bought]
    total = sum(stage.passes for stage in bought)
    lines = []
    for name in dict.fromkeys(stage.stage for stage in bought):
        of = [stage for stage in bought if stage.stage == name]
        rows = sum(stage.broke > 0 for stage in of)
        tried, broke, passes = (sum(getattr(stage, key) for stage in of) for key in ("tried", "broke", "passes"))
        lines.append((name, str(len(of)), str(tried), str(broke), str(rows), f"{passes / total:.1%}"))
    return Table("What each stage broke", ("stage", "rows", "tried", "broke", "on rows", "share of passes"), lines)


def summary(outcomes: Sequence[RowOutcome]) -> str:
    right = sum(each.correct for each in outcomes)
    missed, best = sum(each.missed for each in outcomes), sum(each.missed_of_best for each in outcomes)
    ratios = [each.ratio for each in outcomes if each.ratio is not None and not each.escalated]
    middle = f"R2 {statistics.median(ratios):.1f}x in the median, {min(ratios):.1f}x at least" if ratios else "no R2"
    return (
        f"{right} images right when clean: {missed} left that AutoAttack breaks (most on a row: "
        f"{max(each.missed for each in outcomes)}), {best} that anything known breaks; "
        f"{sum(len(each.alone) for each in outcomes)} fall to auto alone; {middle}; "
        f"{sum(each.escalated for each in outcomes)} escalated; {sum(each.silent for each in outcomes)} silent"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/redteam"))
    parser.add_argument("--attack", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", choices=("all", "tuning", "held-out"), default="all")
    parser.add_argument("--only", nargs="*", default=())
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = []
    for row in read_rows():
        chosen = args.rows == "all" or row.held_out == (args.rows == "held-out")
        if not chosen or (args.only and row.name not in args.only) or not row.verdict_file.exists():
            continue
        found.append(outcome(row, args.attack, args.out, args.seed))
        print(" | ".join(_line(found[-1])), flush=True)
    for faults in (False, True):
        for held_out in (False, True):
            part = [each for each in found if bool(each.row.fault) is faults and each.row.held_out is held_out]
            if part:
                title = f"{'Plants' if faults else 'Trained models'}, {'held out' if held_out else 'for tuning'}"
                print("\n" + table(title, part).markdown() + "\n" + summary(part) + "\n\n" + yields(part).markdown())
    if args.json:
        args.json.write_text(json.dumps([each.json() for each in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
