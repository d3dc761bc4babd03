"""Robust accuracy at every budget from one run: the smallest perturbation of each image that any attack found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from vitattack.analyses.curves import curve_of
from vitattack.analyses.figure import Curves
from vitattack.analyses.findings import Findings, Row
from vitattack.analyses.run import AnalysisRun
from vitattack.analyses.strength.questions import Curve
from vitattack.analyses.tables import share_text, side_by_side
from vitattack.attacks.catalogue import ATTACKS, BUILT_IN
from vitattack.core.errors import UsageError
from vitattack.core.table import Table
from vitattack.records import stats
from vitattack.records.result import Result
from vitattack.text.syntax import AttackSyntax, Call
from vitattack.threats.lp import eps_text, parsed_eps

# Attacks whose candidate is the smallest perturbation that they found.
MINIMUM = tuple(name for module, names in BUILT_IN.items() if module.startswith("minimum_norm.") for name in names)
WITHOUT_STOP = ("deepfool",)  # leaves with its first success, whatever it is told
# Budgets larger than any perturbation, so that every success counts, and those shown unless others are asked for.
WIDE = {"linf": "linf:1", "l2": "l2:50", "l1": "l1:1000000", "l0": "l0:1000000px"}
SHOWN = {
    "linf": ("0", "1/255", "2/255", "4/255", "8/255", "16/255", "32/255"),
    "l2": ("0", "0.25", "0.5", "1", "1.5", "2", "3", "5"),
    "l1": ("0", "3", "6", "12", "24", "48", "96"),
    "l0": ("0", "1", "2", "5", "10", "20", "50", "100"),
}


class Found(NamedTuple):
    """The sizes of the smallest perturbations of all images: 0 where the model errs by itself, inf where nothing fooled it."""

    attack: str
    sizes: tuple[float, ...]
    passes: float  # per attacked image

    def accuracy(self, eps: float) -> stats.Accuracy:
        return stats.share(sum(size > eps for size in self.sizes), len(self.sizes))

    def area(self, end: float) -> float:
        """The area below the curve of robust accuracy from 0 to `end`."""
        return sum(min(size, end) for size in self.sizes) / len(self.sizes)

    @property
    def middle(self) -> float:
        """The median size over images that the model classifies correctly."""
        right = [size for size in self.sizes if size > 0]
        return median(right) if right else 0.0


def curve(analysis: Curve, run: AnalysisRun) -> Findings:
    """Run minimum-norm attacks under a budget that allows everything, and read all budgets off their records."""
    attacks = tuple(map(_to_the_end, analysis.attacks))
    budgets = [
        parsed_eps(analysis.norm, text, SHOWN[analysis.norm][-1]) for text in analysis.at or SHOWN[analysis.norm]
    ]
    if min(budgets) < 0 or not all(map(math.isfinite, budgets)):
        raise UsageError(f"at= takes budgets of 0 and more: write at={','.join(SHOWN[analysis.norm])}")
    rows: list[Row] = []
    columns: dict[str, dict[str, str]] = {}
    series, tables, remarks = [], [], []
    for name, model in run.named:
        found = [_found(r) for r in run.evaluate(model, attacks, threat=WIDE[analysis.norm], certificate=False).results]
        best = Found("all", tuple(map(min, zip(*(each.sizes for each in found), strict=True))), 0.0)
        points = [(eps, best.accuracy(eps)) for eps in sorted(set(budgets))]
        columns[name] = {_eps(analysis.norm, eps): share_text(accuracy) for eps, accuracy in points}
        rows += [{"model": name, "norm": analysis.norm, "eps": eps, **a.json(), "n": a.n} for eps, a in points]
        series.append(curve_of(name, points))
        tables.append(_attacks_table(name, analysis.norm, found, best))
        left = sum(map(math.isinf, best.sizes))
        if left:
            remarks.append(f"{name}: no attack fooled it on {left} of {len(best.sizes)} images at any distance")
    title = "Robust accuracy from the smallest perturbations"
    keys = [_eps(analysis.norm, eps) for eps in sorted(set(budgets))]
    shown = side_by_side(
        f"{title} of {', '.join(analysis.attacks)}, in % with 95 % intervals", f"eps ({analysis.norm})", keys, columns
    )
    figure = Curves(title, f"eps ({analysis.norm})", "accuracy", tuple(series), percent=True)
    return run.findings(rows, [shown, *tables], [figure], remarks)


def optimality(found: Found, best: Found) -> float | None:
    """AttackBench's measure against the best of every image: 1 is as good, 0 what no attack at all would be."""
    end = max((size for size in best.sizes if math.isfinite(size)), default=0.0)
    right = sum(size > 0 for size in best.sizes) / len(best.sizes)
    smallest = best.area(end)
    if right * end <= smallest:
        return None
    return 1 - (found.area(end) - smallest) / (right * end - smallest)


def _found(result: Result) -> Found:
    """Sizes of the candidates that the judge confirmed, from the records of a run."""
    sizes = {"clean_wrong": 0.0, "robust": math.inf, "invalid": math.inf}
    found = tuple(r.size if r.status == "fooled" else sizes[r.status] for r in result.records)
    return Found(result.job.attack, found, sum(result.mean_passes))


def _to_the_end(text: str) -> AttackSyntax:
    """The attack, with stop=never where it could stop at its first success."""
    syntax = AttackSyntax.of(text)
    name = syntax.root.name if isinstance(syntax.root, Call) else str(syntax.root)
    if name not in MINIMUM:
        known = ", ".join(sorted(set(MINIMUM) & set(ATTACKS)))
        raise UsageError(f"curve takes attacks that look for the smallest perturbation, not {name}: {known}")
    return syntax if name in WITHOUT_STOP else syntax.with_options(name, {"stop": Call("never")})


def _attacks_table(model: str, norm: str, found: Sequence[Found], best: Found) -> Table:
    """Attacks side by side: the median they found, their optimality, and their passes."""
    heads = ("attack", f"median {norm}", "optimality", "passes")
    rows = []
    for each in found:
        how = optimality(each, best)
        rows.append((each.attack, _size(each.middle), "-" if how is None else f"{how:.3f}", f"{each.passes:.0f}"))
    return Table(f"{model}: attacks", heads, rows)


def _size(value: float) -> str:
    return "none" if math.isinf(value) else f"{value:.4g}"


def _eps(norm: str, eps: float) -> str:
    return eps_text(eps) if norm == "linf" else f"{eps:g}"
