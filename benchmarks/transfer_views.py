"""Views for transfer against plain MI-FGSM under TransferAttack's protocol, on the embedded and on small trained models.

    python benchmarks/transfer_views.py --out runs/views                              every view and source; resumes if stopped
    python benchmarks/transfer_views.py --out runs/views --views di pna --limit 50    some views, fewer images

Candidates are crafted on each source and judged on all models. A view is compared with MI-FGSM on the same images, those that
source and target both get right: McNemar's test in every cell, with Holm's correction over the cells of the view, and a sign
test over images, each of which votes for whatever fooled more targets. The white box is the source itself.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitattack.core.percent import percent
from vitattack.core.table import Table
from vitattack.evaluation.transfer.protocols import TRANSFER_PROTOCOLS
from vitattack.evaluation.transfer.study import transfer
from vitattack.evaluation.transfer.success_matrix import TransferMatrix
from vitattack.models.victim import Victim
from vitattack.records.stats import paired_test

PROTOCOL = TRANSFER_PROTOCOLS["transferattack"]
EMBEDDED = ("tiny-vit-standard", "tiny-vit", "tiny-vit-aas", "tiny-vit-saturated", "tiny-cnn-standard")
SMALL = {"swin-nfgsm": "swin", "xcit-pgd": "xcit", "cnn-standard": "cnn"}
SOURCES = ("swin-nfgsm", "xcit-pgd", "tiny-vit-standard")
PLAIN = "plain"
VIEWS = {
    PLAIN: PROTOCOL.attack,
    "di": f"di({PROTOCOL.attack})",
    "ti": f"ti({PROTOCOL.attack})",
    "ti, 5 px": f"ti({PROTOCOL.attack}, size=5)",
    "pna": f"pna({PROTOCOL.attack})",
    "sgm": f"sgm({PROTOCOL.attack})",
    "tgr": f"tgr({PROTOCOL.attack})",
    "vdc": f"vdc({PROTOCOL.attack})",
    "attention_fool": f"attention_fool({PROTOCOL.attack})",
    "pna, patchout": f"pna(patchout({PROTOCOL.attack}))",
    "patchout": f"patchout({PROTOCOL.attack})",
    "si": f"si({PROTOCOL.attack})",
    "admix": f"admix({PROTOCOL.attack})",
}


@dataclass(frozen=True)
class Against:
    """A view beside plain MI-FGSM, over all pairs of a source and another model."""

    view: str
    white_box: float
    success: float
    better: int  # cells in which it fools more, significantly after Holm's correction
    worse: int
    cells: int
    more: int  # images of which it fools more targets
    fewer: int
    p_value: float


Robust = Mapping[tuple[str, str], Mapping[int, bool]]  # per source and target: whether each joint image stands


def outcomes(matrices: Iterable[TransferMatrix]) -> dict[tuple[str, str], dict[int, bool]]:
    return {
        (cell.source, cell.target): {record.index: record.status == "robust" for record in cell.joint}
        for matrix in matrices
        for cell in matrix.cells
    }


def against(view: str, plain: Robust, found: Robust) -> Against:
    """Compare a view with MI-FGSM on the same cells."""
    pairs = [pair for pair in plain if pair[0] != pair[1] and plain[pair]]
    tests = {pair: paired_test(plain[pair], found[pair]) for pair in pairs}
    significant = holm({pair: test.p_value for pair, test in tests.items()})
    better = sum(tests[pair].only_first > tests[pair].only_second for pair in significant)
    votes: Counter[int] = Counter()
    for pair in pairs:
        for image, stood in plain[pair].items():
            votes[image] += stood - found[pair][image]
    sign = paired_test(
        {image: vote > 0 for image, vote in votes.items()}, {image: vote < 0 for image, vote in votes.items()}
    )
    own = [pair for pair in plain if pair[0] == pair[1]]
    return Against(
        view,
        _fooled(found, own),
        _fooled(found, pairs),
        better,
        len(significant) - better,
        len(pairs),
        sign.only_first,
        sign.only_second,
        sign.p_value,
    )


def holm(p_values: Mapping[tuple[str, str], float], level: float = 0.05) -> list[tuple[str, str]]:
    """The tests that Holm's step-down procedure rejects."""
    rejected = []
    for rank, (pair, p) in enumerate(sorted(p_values.items(), key=lambda each: each[1])):
        if p > level / (len(p_values) - rank):
            break
        rejected.append(pair)
    return rejected


def _fooled(found: Robust, pairs: Sequence[tuple[str, str]]) -> float:
    """The mean over cells of the share of joint images that are fooled."""
    return sum(1 - sum(found[pair].values()) / len(found[pair]) for pair in pairs) / len(pairs)


def views_table(rows: Sequence[Against], plain: Robust) -> Table:
    """One row per view; the first is MI-FGSM itself."""
    own = [pair for pair in plain if pair[0] == pair[1]]
    others = [pair for pair in plain if pair[0] != pair[1] and plain[pair]]
    lines = [("MI-FGSM", percent(_fooled(plain, own)), percent(_fooled(plain, others)), "", "", "", "")]
    for row in rows:
        cells = f"{row.better} / {row.worse} of {row.cells}"
        verdict = "not shown" if row.p_value >= 0.05 else "better" if row.more > row.fewer else "worse"
        lines.append(
            (
                row.view,
                percent(row.white_box),
                percent(row.success),
                cells,
                f"{row.more} / {row.fewer}",
                f"{row.p_value:.2g}",
                verdict,
            )
        )
    columns = ("view", "white box", "transfer", "cells better / worse", "images more / fewer", "p", "transfers")
    return Table("success on images that source and target get right", columns, lines)


def cells_table(found: Mapping[str, Robust], source: str) -> Table:
    """Success on every target from one source, per view."""
    targets = [target for origin, target in found[PLAIN] if origin == source]
    rows = [
        (view, *(f"{percent(_fooled(robust, [(source, target)]))}" for target in targets))
        for view, robust in found.items()
    ]
    counts = ("images", *(str(len(found[PLAIN][source, target])) for target in targets))
    return Table(f"crafted on {source}", ("view", *targets), [counts, *rows])


def models() -> dict[str, str | Victim]:
    sys.path.append(str(Path(__file__).parent / "redteam"))
    from rows import load_trained

    small = {name: load_trained(name, family, 10) for name, family in SMALL.items()}
    for name, victim in small.items():
        victim.name = name
    return {**{name: name for name in EMBEDDED}, **small}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--views", nargs="*", default=list(VIEWS))
    parser.add_argument("--sources", nargs="*", default=list(SOURCES))
    args = parser.parse_args()
    known = models()
    found: dict[str, Robust] = {}
    for view in dict.fromkeys([PLAIN, *args.views]):
        done = []
        for source in args.sources:
            done.append(
                transfer(
                    [known[source]],
                    list(known.values()),
                    VIEWS[view],
                    threat=PROTOCOL.threat,
                    data="cifar10-demo",
                    limit=args.limit,
                    batch_size=50,
                    threads=1,
                    out=args.out,
                )
            )
            print(f"{view} on {source}", flush=True)
        found[view] = outcomes(done)
    rows = [against(view, found[PLAIN], found[view]) for view in found if view != PLAIN]
    tables = [views_table(rows, found[PLAIN]), *(cells_table(found, source) for source in args.sources)]
    print("\n\n".join(table.markdown() for table in tables))


if __name__ == "__main__":
    main()
