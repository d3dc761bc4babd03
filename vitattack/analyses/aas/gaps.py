"""Gaps between attention scores before and after AAS, by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from vitattack.analyses.aas.ablations import layers_of
from vitattack.analyses.aas.questions import SoftmaxGaps
from vitattack.analyses.figure import Curves, Series
from vitattack.analyses.findings import Findings, Row
from vitattack.analyses.run import AnalysisRun, Model
from vitattack.analyses.tables import side_by_side
from vitattack.core.errors import UsageError
from vitattack.diagnostics.diagnose import Block, diagnose
from vitattack.diagnostics.row_statistics import bin_edges

BEFORE, AFTER = "before", "after"
MEASURES = ("gap_median", "gap_p99", "gap_max", "saturated", "underflow")


class Gaps(NamedTuple):
    """The blocks of one model, plain and under the factors that AAS prefers."""

    model: str
    before: Sequence[Block]
    after: Sequence[Block]

    def sides(self) -> tuple[tuple[str, Sequence[Block]], ...]:
        return (BEFORE, self.before), (AFTER, self.after)


def softmax_gaps(analysis: SoftmaxGaps, run: AnalysisRun) -> Findings:
    """Let AAS find its factors, and read every attention row with them and without."""
    found = [_measured(analysis, run, name, model) for name, model in run.named]
    rows: list[Row] = [
        {"model": each.model, "layer": block.layer.number, "side": side, **{m: block.summary[m] for m in MEASURES}}
        for each in found
        for side, blocks in each.sides()
        for block in blocks
    ]
    columns = {
        f"{each.model}, {side}": {
            str(block.layer.number): f"{block.summary['gap_median']:.2f} / {block.summary['gap_max']:.1f}"
            for block in blocks
        }
        for each in found
        for side, blocks in each.sides()
    }
    keys = list(dict.fromkeys(key for column in columns.values() for key in column))
    notes = ["above 16.6 the softmax of float32 rounds to one, above 87.3 it underflows"]
    title = "Gap between the two highest scores of a row, median / largest"
    table = side_by_side(title, "layer", keys, columns, notes)
    return run.findings(rows, [table], [figure for each in found for figure in _figures(each)], _remarks(found))


def _measured(analysis: SoftmaxGaps, run: AnalysisRun, name: str, model: Model) -> Gaps:
    layers_of(run, name, model)
    result = run.evaluate(model, analysis.scaled(analysis.inner))[0]
    if result.folder is None or result.learned is None:
        raise UsageError(f"aas found no factors for '{name}': give other options")
    setup = run.setup_of(model)
    before = diagnose(model, setup=setup, gradient_images=1)
    after = diagnose(model, setup=setup, gradient_images=1, scales=result.folder / "learned.json")
    return Gaps(name, before.blocks, after.blocks)


def _figures(found: Gaps) -> Iterator[Curves]:
    """Histograms of the first, a middle and the last layer, and the median and the largest gap of all."""
    edges = bin_edges()
    middles = tuple((edges[:-1] * edges[1:]).sqrt().tolist())
    for at in sorted({0, len(found.before) // 2, len(found.before) - 1}):
        lines = []
        for side, blocks in found.sides():
            total = max(1, sum(blocks[at].histogram))
            lines.append(Series(side, middles, tuple(count / total for count in blocks[at].histogram)))
        yield Curves(f"{found.model}: gaps of layer {at}", "gap", "share of rows", tuple(lines), log_x=True)
    by_layer = [
        Series(
            f"{words}, {side}",
            tuple(float(block.layer.number) for block in blocks),
            tuple(block.summary[measure] for block in blocks),
        )
        for measure, words in (("gap_median", "median"), ("gap_max", "largest"))
        for side, blocks in found.sides()
    ]
    yield Curves(f"{found.model}: gaps by layer", "layer", "gap", tuple(by_layer), log_y=True)


def _remarks(found: Sequence[Gaps]) -> Iterator[str]:
    for each in found:
        largest = [max(block.summary["gap_max"] for block in blocks) for _, blocks in each.sides()]
        flagged = [sum(block.verdict != "ok" for block in blocks) for _, blocks in each.sides()]
        yield (
            f"{each.model}: the largest gap goes from {largest[0]:.1f} to {largest[1]:.1f}; layers that saturate or underflow "
            f"in float32: {flagged[0]} before, {flagged[1]} after"
        )
