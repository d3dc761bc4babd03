"""`check` on the red team: every check on every row, the verdicts on claims, and the certificates of several attacks.

    python benchmarks/redteam/checks.py --out runs/redteam                     every row with a stored verdict; resumes if stopped
    python benchmarks/redteam/checks.py --out runs/redteam --only vit-trades
    python benchmarks/redteam/checks.py --tables                               from what is stored in checks/, running nothing

An honest model is checked against AutoAttack's number on its images, a plant against the number that PGD-20 would have published
for it: in percent, where chance is allowed for, and as a count on the same images. A claim is inflated if it is above the best
number known. What a row showed is kept in checks/.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rows import HERE, PLANTED, RedTeamRow, read_rows

from vitattack import evaluate
from vitattack.checks.certificate import certify
from vitattack.checks.check import check
from vitattack.checks.claim import Claim
from vitattack.checks.verdict import judge
from vitattack.core.table import Table
from vitattack.models.lost_gradients import NoGradient
from vitattack.threats.base import parse_threat
from vitattack.threats.lp import LpBall

PUBLISHED = "pgd(steps=20)"  # what an inflated number rests on
CERTIFIED = ("fgsm", PUBLISHED, "apgd_ce", "targets(pgd(steps=10, loss=margin), k=9)", "auto", "autoattack")
IMAGES = 32  # of a certificate by all of these attacks


def outcome(row: RedTeamRow, out: Path) -> dict[str, Any]:
    """The checks of a row, the verdicts on its claims, and its certificates."""
    victim, (x, y) = row.victim(out), row.images(out)
    x, y = x[:PLANTED], y[:PLANTED]
    known = json.loads(row.verdict_file.read_text())
    settings: dict[str, Any] = {
        "threat": row.threat,
        "data": (x, y),
        "threads": 1,
        "device": "cpu",
        "out": row.store(out),
    }
    checked = check(victim, **settings)
    (claimed, source) = (sum(index < PLANTED for index in known["autoattack"]), "AutoAttack")
    if row.fault:
        claimed, source = _published(victim, settings, checked.auto.clean.correct), "PGD-20"
    claims = {"percent": Claim(claimed / len(y)), "count": Claim.of(f"{claimed}/{len(y)}")}
    return {
        "name": row.name,
        "claimed": claimed,
        "source": source,
        "clean": checked.auto.clean.correct,
        "auto": checked.auto.robust.correct,
        "best": checked.best.correct,
        "known": sum(index < PLANTED for index in known["best"]),
        "verdicts": {kind: judge(claim, checked.best, checked.items).word for kind, claim in claims.items()},
        "checks": {item.name: item.passed for item in checked.items},
        "figures": {item.name: item.figure for item in checked.items if item.decisive and item.passed is False},
        "certificate": _certificates(victim, x, row),
    }


def _published(victim: torch.nn.Module, settings: Mapping[str, Any], right: int) -> int:
    """Images that PGD-20 leaves; all that are right where it finds no gradient to follow."""
    try:
        (found,) = evaluate(victim, PUBLISHED, **settings).results
    except NoGradient:
        return right
    return found.robust.correct


def _certificates(victim: Any, x: torch.Tensor, row: RedTeamRow) -> dict[str, str]:
    ball = parse_threat(row.threat)
    assert isinstance(ball, LpBall)
    found = certify(victim, x[:IMAGES], ball, CERTIFIED, seed=0, batch_size=64)
    return {each: found.says_nothing or f"{found.found_by(each)}/{found.tested}" for each in CERTIFIED}


def tables(found: Sequence[Mapping[str, Any]]) -> list[Table]:
    names = list(dict.fromkeys(name for each in found for name in each["checks"]))
    confusion = [
        (
            each["name"],
            *(str(each[key]) for key in ("clean", "auto", "best", "known")),
            f"{each['claimed']} by {each['source']}",
            *(each["verdicts"][kind] for kind in ("percent", "count")),
            ", ".join(name for name in names if each["checks"].get(name) is False) or "none",
        )
        for each in found
    ]
    heads = ("row", "right", "auto", "best", "known", "claimed", "in percent", "as a count", "checks that fail")
    certified = [(each["name"], *(each["certificate"].get(attack, "-") for attack in CERTIFIED)) for each in found]
    failing = [(name, *(_share(found, name, planted) for planted in (False, True))) for name in names]
    return [
        Table("Verdicts and failing checks", heads, confusion),
        Table("How often a check fails", ("check", "honest", "planted"), failing),
        Table("Planted examples found", ("row", *CERTIFIED), certified),
    ]


def _share(found: Sequence[Mapping[str, Any]], name: str, planted: bool) -> str:
    said = [each["checks"].get(name) for each in found if ("+" in each["name"]) is planted]
    return f"{said.count(False)} of {len(said) - said.count(None)}"


def summary(found: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for title, planted in (("trained models", False), ("plants", True)):
        part = [each for each in found if ("+" in each["name"]) is planted]
        inflated = sum(each["claimed"] > each["known"] for each in part)
        lines.append(f"{inflated} of {len(part)} {title} have a claim above what anybody is known to leave")
        for kind in ("percent", "count"):
            words = Counter(each["verdicts"][kind] for each in part)
            said = ", ".join(f"{word} {count}" for word, count in sorted(words.items()))
            lines.append(f"{len(part)} {title}, claims {'in percent' if kind == 'percent' else 'as a count'}: {said}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/redteam"))
    parser.add_argument("--only", nargs="*", default=())
    parser.add_argument("--tables", action="store_true", help="run nothing")
    args = parser.parse_args()
    (HERE / "checks").mkdir(exist_ok=True)
    found = []
    for row in read_rows():
        path = HERE / "checks" / f"{row.name}.json"
        wanted = not args.tables and row.verdict_file.exists() and (not args.only or row.name in args.only)
        if wanted and not path.exists():
            path.write_text(json.dumps(outcome(row, args.out)) + "\n")
            print(path.read_text(), end="", flush=True)
        if path.exists():
            found.append(json.loads(path.read_text()))
    for table in tables(found):
        print("\n" + table.markdown())
    print("\n" + summary(found))


if __name__ == "__main__":
    main()
