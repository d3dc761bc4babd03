"""`auto` against AutoAttack: survivors of both, passes per image, and time for the same images.

    vitattack eval tiny-vit autoattack_ref --data 'cifar10-demo[:256]' --threads 1 --out runs/reference
    python benchmarks/perf/auto.py --reference runs/reference --out runs/auto --model tiny-vit --data 'cifar10-demo[:256]'
    python benchmarks/perf/auto.py --reference runs/reference --out runs/auto --rows rows.yaml --json auto.json --time 32

AutoAttack takes about 18 s for a robust image of `tiny-vit`, so its verdicts come from stored runs, found by the digest of
the weights, the threat and the images; several runs on parts of the images are read together. `auto` is run, or
read if --out has it, on one thread. `--rows` is a list of {model, name, threat, data, arch, arch_kwargs, normalize,
held_out}; models that are held out of all tuning get a table of their own. R2 is the ratio of forwards + backwards on the
images that both leave standing. --time N also runs both on the first N images of each row, interleaved, for the
ratio of their times, R1; without --reference it does nothing else.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure import arguments, conditions, interleaved, median
from verdicts import Outcome, Row, read_rows, references, stored

import vitattack
from vitattack.attacks import attack_text
from vitattack.core.errors import UsageError
from vitattack.data import DataSet, load_data
from vitattack.models.victim import Victim
from vitattack.models.zoo.load import load_model
from vitattack.threats.base import parse_threat

AIM, HALF = 24, "bf16-search"


def mean(values: Iterable[int]) -> float:
    found = list(values)
    return sum(found) / max(1, len(found))


@dataclass(frozen=True)
class Comparison:
    """Both attacks on those images of a row that AutoAttack has a verdict on."""

    row: Row
    wanted: int
    theirs: dict[int, Outcome]
    ours: dict[int, Outcome]

    @property
    def exceptions(self) -> list[int]:
        return [i for i in self.ours if self.ours[i].stands and not self.theirs[i].stands]

    def json(self) -> dict[str, Any]:
        right = [i for i in self.ours if self.ours[i].attacked]
        sides = {"autoattack": self.theirs, "auto": self.ours}
        both = [i for i in right if self.ours[i].stands and self.theirs[i].stands]
        ours, theirs = (mean(side[i].passes for i in both) for side in (self.ours, self.theirs))
        ours_all, theirs_all = (mean(side[i].passes for i in right) for side in (self.ours, self.theirs))
        search = ours - mean(self.ours[i].assurance for i in both)
        return {
            "row": asdict(self.row),
            "n": len(self.ours),
            "without reference": self.wanted - len(self.ours),
            "clean correct": len(right),
            "autoattack leaves": sum(o.stands for o in self.theirs.values()),
            "auto leaves": sum(o.stands for o in self.ours.values()),
            "exceptions": [self._exception(i) for i in self.exceptions],
            "only autoattack leaves": [i for i in right if self.theirs[i].stands and not self.ours[i].stands],
            "passes per robust image": {"autoattack": round(theirs, 1), "auto": round(ours, 1)},
            "without assurance": {"autoattack": round(theirs, 1), "auto": round(search, 1)},
            "passes per clean-correct image": {"autoattack": round(theirs_all, 1), "auto": round(ours_all, 1)},
            "R2": round(theirs / ours, 2) if both else None,
            "R2 without assurance": round(theirs / search, 2) if both else None,
            "R2 of all clean-correct images": round(theirs_all / ours_all, 2) if right else None,
            "seconds": {name: round(sum(o.seconds for o in side.values()), 1) for name, side in sides.items()},
            "escalated": any("spent full" in o.record.evidence for o in self.ours.values()),
        }

    def _exception(self, image: int) -> dict[str, Any]:
        theirs, ours = self.theirs[image], self.ours[image]
        return {
            "image": image,
            "label": ours.record.label,
            "autoattack": theirs.stage,
            "auto": {"status": ours.record.status, "passes": ours.passes, **ours.record.evidence},
        }


def compare(row: Row, args: argparse.Namespace) -> Comparison:
    model, options = row.source
    victim, data = load_model(model, torch.device("cpu"), options).victim, load_data(row.data)
    theirs = references(
        args.reference, attack_text.canonical(args.against), victim, str(parse_threat(row.threat)), data
    )
    if not theirs:
        raise UsageError(f"no stored run of {args.against} on '{row.shown}', {row.threat}, {row.data}: make one first")
    settings: dict[str, Any] = {"threat": row.threat, "data": row.data, "options": options, "threads": args.threads}
    settings |= {"batch_size": args.batch_size, "out": args.out, "precision": args.precision}
    result = vitattack.evaluate(model, args.attack, **settings).results[0]
    assert result.folder is not None
    ours = stored(result.folder, result.job.attack)
    return Comparison(row, len(data), theirs, {i: ours[i] for i in theirs})


def robust(row: Row, victim: Victim, data: DataSet, found: dict[str, float], name: str, attack: str, more: Any) -> None:
    result = vitattack.evaluate(victim, attack, threat=row.threat, data=data, **more).results[0]
    found[name] = result.robust.accuracy


def timed(row: Row, args: argparse.Namespace) -> dict[str, Any]:
    """Time both on the same few images, from scratch, side by side."""
    model, options = row.source
    victim, data = load_model(model, torch.device("cpu"), options).victim, load_data(row.data)
    data = replace(data, rows=data.rows[: args.time], text=f"{data.text}, the first {args.time}")
    settings = {"threads": args.threads, "batch_size": args.batch_size}
    found: dict[str, float] = {}
    ways: dict[str, tuple[str, dict[str, Any]]] = {
        "autoattack": (args.against, settings),
        "auto": (args.attack, settings),
        "auto without certificate": (args.attack, {**settings, "certificate": False}),
        f"auto {HALF}": (args.attack, {**settings, "precision": HALF}),
    }
    asked: dict[str, Callable[[], object]] = {
        name: partial(robust, row, victim, data, found, name, attack, more) for name, (attack, more) in ways.items()
    }
    seconds = interleaved(asked, args.rounds, warm=False)
    ratios = {
        n: sorted(a / b for a, b in zip(seconds["autoattack"], s)) for n, s in seconds.items() if n != "autoattack"
    }
    return {
        "row": row.shown,
        "n": len(data),
        "seconds": {name: round(median(values), 2) for name, values in seconds.items()},
        "robust accuracy": found,
        "R1": {name: {"median": round(median(r), 2), "rounds": [round(x, 2) for x in r]} for name, r in ratios.items()},
    }


COLUMNS = {
    "images": "n",
    "right when clean": "clean correct",
    "AutoAttack leaves": "autoattack leaves",
    "auto leaves": "auto leaves",
    "only auto leaves": "exceptions",
    "only AutoAttack leaves": "only autoattack leaves",
    "passes per robust image": "passes per robust image",
    "R2": "R2",
    "R2 without assurance": "R2 without assurance",
    "R2 of all clean-correct": "R2 of all clean-correct images",
    "seconds": "seconds",
    "escalated": "escalated",
}


def cell(value: Any) -> str:
    if isinstance(value, dict):
        return f"{value['autoattack']:,.0f} / {value['auto']:,.0f}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(len(value)) if isinstance(value, list) else "-" if value is None else f"{value:,}"


def table(title: str, found: Sequence[dict[str, Any]]) -> None:
    if not found:
        return
    print(f"\n{title}\n\n| model | threat | {' | '.join(COLUMNS)} |\n| --- | --- |{' --: |' * len(COLUMNS)}")
    for shown in found:
        row = shown["row"]
        cells = [row["name"] or row["model"], row["threat"], *(cell(shown[key]) for key in COLUMNS.values())]
        print(f"| {' | '.join(cells)} |")


def pooled(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Exceptions of all rows against the allowed number, and the smallest R2 of rows that did not escalate."""
    images, exceptions = sum(shown["n"] for shown in found), sum(len(shown["exceptions"]) for shown in found)
    ratios = [shown["R2"] for shown in found if shown["R2"] is not None and not shown["escalated"]]
    return {
        "images": images,
        "exceptions": exceptions,
        "allowed": max(1, images // 1000),
        "smallest R2": min(ratios) if ratios else None,
    }


def report(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    table("Models that were looked at while `auto` was made", [s for s in found if not s["row"]["held_out"]])
    table("Models held out of all tuning", [s for s in found if s["row"]["held_out"]])
    print(
        "\nPairs are AutoAttack / auto; passes are forwards + backwards, clean forwards and verdicts included. R2 is per"
    )
    print(
        "image that both leave standing, the assurance of auto included where nothing else is said. Seconds are those of"
    )
    print("the stored runs: machines and their load may differ.")
    for shown in found:
        name = shown["row"]["name"] or shown["row"]["model"]
        if shown["without reference"]:
            print(
                f"{name}, {shown['row']['threat']}: {shown['without reference']} images have no verdict of AutoAttack yet"
            )
        for told in shown["exceptions"]:
            print(
                f"{name}, {shown['row']['threat']}: auto leaves image {told['image']}, which AutoAttack breaks: {told}"
            )
    sums = pooled(found)
    print(f"\nexceptions: {sums['exceptions']} on {sums['images']} images, {sums['allowed']} allowed")
    print(f"smallest R2 where auto did not escalate: {sums['smallest R2']}x, wanted {AIM}x")
    return sums


def report_times(found: Sequence[dict[str, Any]]) -> None:
    for shown in found:
        print(f"\n{shown['row']}, the same {shown['n']} images, fp32 unless stated")
        for name, seconds in shown["seconds"].items():
            ratio = (
                f", R1 {shown['R1'][name]['median']}x of {shown['R1'][name]['rounds']}" if name in shown["R1"] else ""
            )
            print(f"{name:>17}: {seconds:,.1f} s, robust accuracy {shown['robust accuracy'][name]:.1%}{ratio}")


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--reference", type=Path, nargs="*", default=[], help="folders of stored runs of AutoAttack")
    parser.add_argument("--out", type=Path, help="folder that keeps the runs of auto")
    parser.add_argument("--rows", type=Path, help="a YAML list of rows, instead of --model and its words")
    parser.add_argument("--only", nargs="+", help="the rows of these names")
    parser.add_argument("--model", default="tiny-vit")
    for word in ("threat", "data"):
        parser.add_argument(f"--{word}", default=getattr(Row("-"), word))
    for word in ("arch", "normalize"):
        parser.add_argument(f"--{word}", help="of a checkpoint file")
    parser.add_argument("--arch-kwargs", type=json.loads, default={})
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--precision", default="fp32", help=f"{HALF} where this machine has it")
    parser.add_argument("--attack", default="auto")
    parser.add_argument(
        "--against", default="autoattack_ref", help="the reference; anything but the default is for a look"
    )
    parser.add_argument(
        "--time", type=int, nargs="?", const=32, default=0, metavar="N", help="time N images, 32 by default"
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    try:
        single = {f.name: getattr(args, f.name) for f in fields(Row) if hasattr(args, f.name)}
        rows = [
            r for r in (read_rows(args.rows) if args.rows else [Row(**single)]) if not args.only or r.shown in args.only
        ]
        if not args.reference and not args.time:
            raise UsageError("nothing to do: give --reference to compare verdicts, or --time to compare times")
        if args.reference and not args.out:
            raise UsageError("--reference compares stored runs: say with --out where those of auto are kept")
        print(
            f"{conditions(args.threads)}\n{attack_text.canonical(args.attack)}, {args.precision}, batch {args.batch_size}"
        )
        found = [compare(row, args).json() for row in rows] if args.reference else []
        sums = report(found) if found else {}
        times = [timed(row, args) for row in rows] if args.time else []
        report_times(times)
    except UsageError as error:
        raise SystemExit(str(error)) from None
    if args.json:
        content = {
            "schema": 1,
            "attack": attack_text.canonical(args.attack),
            "precision": args.precision,
            "rows": found,
        }
        args.json.write_text(json.dumps(content | {"pooled": sums, "times": times}, indent=2) + "\n")


if __name__ == "__main__":
    main()
