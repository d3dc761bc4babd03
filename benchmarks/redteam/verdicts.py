"""The red team's reference verdicts per image: AutoAttack's, and the best known, the union of all that ever broke it.

    python benchmarks/redteam/verdicts.py --out runs/redteam                 (many hours on one core; resumes if stopped)
    python benchmarks/redteam/verdicts.py --out runs/redteam --only swin-pgd

AutoAttack is the package itself at its standard settings (`autoattack_ref`); of its stages only Square runs on a model without a
gradient, where the others end in an error. The best known verdict adds our own attacks and,
for a plant, candidates crafted on the model without its fault, which is what a hand-written BPDA does.
"""

from __future__ import annotations

import argparse
import json
from contextlib import suppress
from pathlib import Path

import torch
from rows import HERE, RedTeamRow, read_rows

from vitattack import attack, evaluate
from vitattack.models.lost_gradients import NoGradient

REFERENCE, OF_LOGITS = "autoattack_ref", "autoattack_ref(stages=('square',))"
OTHERS = ("auto", "worst(apgd_ce, apgd_t)")
CRAFTED = ("targets(pgd(steps=20, loss=margin), k=9)", "apgd_t")
CHECKS = 10  # forwards that have to agree that a crafted candidate fools


def broken_by(row: RedTeamRow, text: str, out: Path) -> tuple[set[int], set[int], float]:
    """Images that are right when clean, those that an attack broke, and its passes per image that it did not."""
    victim, (x, y) = row.victim(out), row.images(out)
    (result,) = evaluate(
        victim, text, threat=row.threat, data=(x, y), out=row.store(out), threads=1, device="cpu"
    ).results
    left = [record.forwards + record.backwards for record in result.records if record.status == "robust"]
    right = {record.index for record in result.records if record.clean == record.label}
    broke = {record.index for record in result.records if record.status == "fooled"}
    return right, broke, sum(left) / max(1, len(left))


def broken_without_fault(row: RedTeamRow, text: str, out: Path) -> set[int]:
    """Images of a plant that candidates crafted on the model without its fault break in all of several forwards."""
    victim, (x, y) = row.victim(out), row.images(out)
    crafted = attack(text, threat=row.threat)(row.without_fault.victim(out), x, y).x_adv
    with torch.no_grad():
        wrong = torch.stack([victim(crafted).argmax(1) != y for _ in range(CHECKS)]).all(0)
    return set(wrong.nonzero().flatten().tolist())


def verdict(row: RedTeamRow, out: Path) -> dict[str, object]:
    """AutoAttack's survivors, those of everything together, and the attack that took each of the rest from AutoAttack."""
    try:
        reference = REFERENCE
        right, broke, passes = broken_by(row, reference, out)
    except NoGradient:
        reference = OF_LOGITS
        right, broke, passes = broken_by(row, reference, out)
    left = right - broke
    taken: dict[str, list[int]] = {}
    for text in OTHERS:
        with suppress(NoGradient):
            taken[text] = sorted(left & broken_by(row, text, out)[1])
    for text in CRAFTED if row.fault else ():
        taken[f"{text} without the fault"] = sorted(left & broken_without_fault(row, text, out))
    return {
        "threat": row.threat,
        "images": len(row.images(out)[1]),
        "correct": len(right),
        "autoattack": sorted(left),
        "best": sorted(left - {index for rows in taken.values() for index in rows}),
        "taken": {text: rows for text, rows in taken.items() if rows},
        "passes": round(passes, 1),
        "reference": reference,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/redteam"))
    parser.add_argument("--only", nargs="*", default=())
    args = parser.parse_args()
    (HERE / "verdicts").mkdir(exist_ok=True)
    for row in read_rows():
        path = row.verdict_file
        if (args.only and row.name not in args.only) or path.exists() or not row.weights.exists():
            continue
        found = verdict(row, args.out)
        path.write_text(json.dumps(found) + "\n")
        counts = {key: len(value) if isinstance(value, list) else value for key, value in found.items()}
        print(row.name, counts, flush=True)


if __name__ == "__main__":
    main()
