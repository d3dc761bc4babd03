"""Tables and figures of a diagnosis: small histograms per layer, and gap histograms per block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitattack.core.table import Table
from vitattack.diagnostics.diagnose import Block, Diagnosis
from vitattack.diagnostics.row_statistics import bin_edges
from vitattack.models.attention.saturation import HIGHEST_GAP, LOWEST_GAP, SATURATED_GAP, UNDERFLOW_GAP
from vitattack.report.plots.paper import check_plot, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BARS = " ▁▂▃▄▅▆▇█"
BAR_BINS = 4  # histogram bins per character: half a decade
SHOWN = range(16, 48, BAR_BINS)  # the characters from 0.1 to 1000; what lies outside counts in the first and last
COLUMNS = ("layer", "gap median p99 max", "gaps", ">16.6", ">87.3", "dz=0", "verdict")
NUMBERS = ("gap_median", "gap_p99", "gap_max", "saturated", "underflow", "zero_weights", "entropy", "jacobian_trace")


def table(diagnosis: Diagnosis) -> Table:
    """A row per attention softmax: gaps between its two highest scores, and their effect in fp32."""
    names = layer_labels(diagnosis.blocks)
    rows = [_row(block, name) for block, name in zip(diagnosis.blocks, names, strict=True)]
    title = f"{diagnosis.model} | {diagnosis.data} | n = {diagnosis.n} | {len(rows)} attention softmaxes"
    return Table(title, COLUMNS, rows, notes(diagnosis))


def numbers(diagnosis: Diagnosis) -> Table:
    """The statistics as plain numbers: a row per head, and one per layer (head "all")."""
    dtypes = ("float32", "float16", "bfloat16")
    counts = ("p_max_one", "zero_weights", "subnormal_weights", "dead_rows", "overflow_rows")
    columns = [
        "layer", "name", "head", *NUMBERS, "zero_dscores", *(f"{dtype}_{key}" for dtype in dtypes for key in counts), "verdict",
    ]  # fmt: skip
    rows = []
    for block in diagnosis.blocks:
        whole = {**block.summary, "zero_dscores": block.zero_dscores}
        for head, part in (("all", whole), *((str(n), part) for n, part in enumerate(block.per_head))):
            shares = [part["dtypes"][dtype][key] for dtype in dtypes for key in counts]
            values = [*(part[key] for key in NUMBERS), part["zero_dscores"], *shares]
            rows.append((str(block.layer.number), block.layer.name, head, *map(repr, values), block.verdict))
    return Table(diagnosis.model, columns, rows)


def notes(diagnosis: Diagnosis) -> list[str]:
    gradient = diagnosis.gradient
    ones, zeros = (_worst(diagnosis.blocks, "float32", key) for key in ("p_max_one", "zero_weights"))
    lines = [
        "gaps: by half decades, below 0.3 to above 316; >16.6, >87.3: % of rows; dz=0: % zeros in the gradient of the scores",
        f"verdict: {diagnosis.verdict}. {_reason(diagnosis)}",
        f"fp32, worst layer: p = 1 in {ones:.2%} of rows, {zeros:.2%} zero weights",
    ]
    missing: dict[str, str] = gradient.get("missing", {})
    reference = "fp32" if "fp64" in missing else "fp64"
    for loss, label in (("margin", "margin"), ("cross_entropy", "cross-entropy")):
        for dtype in ("fp32", "bf16"):
            agreement = gradient[loss][dtype]
            if agreement is None:
                continue
            lines.append(
                f"input gradient of the {label} in {dtype} against {reference} ({gradient['n']} images): "
                f"sign agreement {agreement['sign_agreement']:.2%}, cosine {agreement['cosine']:.6f}, "
                f"exact zeros {agreement['zero']:.2%}"
            )
    lines += [
        f"no comparison with {precision}, in which the model cannot run: {reason}"
        for precision, reason in missing.items()
    ]
    lines.append(
        f"share of the input gradient that flows through the attention scores: {gradient['through_attention']:.1%}"
    )
    for dtype, label in (("float16", "fp16"), ("bfloat16", "bf16")):
        worst = {key: _worst(diagnosis.blocks, dtype, key) for key in ("p_max_one", "zero_weights", "overflow_rows")}
        lines.append(
            f"simulated {label}, worst layer: p = 1 in {worst['p_max_one']:.2%} of rows, "
            f"{worst['zero_weights']:.2%} zero weights, {worst['overflow_rows']:.2%} rows overflow"
        )
    learned = [t for block in diagnosis.blocks for t in block.layer.temperature or ()]
    if learned:
        lines.append(f"learned temperatures: {min(learned):.3g} to {max(learned):.3g}")
    if diagnosis.coverage:
        lines.append(diagnosis.coverage)
    if diagnosis.ignored:
        reasons = "; ".join(sorted({reason for _, reason in diagnosis.ignored}))
        lines.append(f"{len(diagnosis.ignored)} softmaxes are no attention and were ignored: {reasons}")
    return lines


def plot(diagnosis: Diagnosis, path: str | Path, after: Diagnosis | None = None) -> None:
    """Plot gap histograms per block, with those of `after`, another diagnosis of the same layers, behind them."""
    check_plot(str(path))
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    count, names = len(diagnosis.blocks), layer_labels(diagnosis.blocks)
    across = min(4, count)
    down = math.ceil(count / across)
    figure = Figure(figsize=(3.2 * across, 2.2 * down + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(down, across, squeeze=False, sharex=True)
    for number, axes in enumerate(grid.flat):
        if number >= count:
            axes.set_visible(False)
            continue
        _histogram(axes, diagnosis.blocks[number], "tab:blue", diagnosis.model)
        if after is not None:
            _histogram(axes, after.blocks[number], "tab:orange", after.model)
            for text in axes.legend(fontsize=6).get_texts():
                text.set_parse_math(False)
        block = diagnosis.blocks[number]
        axes.set_title(f"{names[number]}: {block.verdict}", fontsize=8)
        axes.axvline(SATURATED_GAP, color="tab:olive", linewidth=1)
        axes.axvline(UNDERFLOW_GAP, color="tab:red", linewidth=1)
    figure.supxlabel(
        "gap between the two highest attention scores (lines: 16.6 saturates fp32, 87.3 underflows)", fontsize=9
    )
    figure.supylabel("share of rows", fontsize=9)
    title = f"{diagnosis.model}, {diagnosis.data}, n = {diagnosis.n}"
    figure.suptitle(title, fontsize=10, parse_math=False)  # a name with two dollar signs is no formula
    save(figure, Path(path))


def _histogram(axes: Axes, block: Block, colour: str, label: str) -> None:
    total = max(1, sum(block.histogram))
    edges = bin_edges().tolist()
    axes.stairs([n / total for n in block.histogram], edges, fill=True, alpha=0.6, color=colour, label=label)
    axes.set_xscale("log")
    axes.set_xlim(LOWEST_GAP, HIGHEST_GAP)
    axes.tick_params(labelsize=7)


def _row(block: Block, name: str) -> tuple[str, ...]:
    s = block.summary
    gaps = " ".join(f"{_gap(s[key]):>5}" for key in ("gap_median", "gap_p99", "gap_max"))
    shares = (s["saturated"], s["underflow"], block.zero_dscores)
    return (name, gaps, bars(block.histogram), *map(_share, shares), block.verdict)


def bars(histogram: Sequence[int]) -> str:
    """One character per half decade of the gap; no bin with content is blank."""
    sums = [sum(histogram[at : at + BAR_BINS]) for at in SHOWN]
    sums[0] += sum(histogram[: SHOWN.start])
    sums[-1] += sum(histogram[SHOWN.stop :])
    top = max(*sums, 1)
    return "".join(BARS[0 if n == 0 else max(1, round(n / top * 8))] for n in sums)


def layer_labels(blocks: Sequence[Block]) -> list[str]:
    """Block names, or layer numbers and names if a block holds several softmaxes."""
    names = [block.layer.block for block in blocks]
    if len(set(names)) < len(names):
        names = [block.layer.name for block in blocks]
    if len(set(names)) < len(names):
        names = [f"{name} #{block.layer.number}" for name, block in zip(names, blocks, strict=True)]
    for wrapper in ("model.", "victim.", "model."):  # ours: a victim, and a view of one
        if all(name.startswith(wrapper) for name in names):
            names = [name.removeprefix(wrapper) for name in names]
    return names


def _gap(value: float) -> str:
    """Format a number from 0.001 to 99999 in five characters."""
    return (
        f"{value:.3f}"
        if value < 1
        else f"{value:.3g}"
        if value < 1000
        else f"{value:.0f}"
        if value < 1e5
        else f"{value:.0e}"
    )


def _share(value: float) -> str:
    percent = 100 * value
    return "0" if value == 0 else f"{percent:.1f}" if percent >= 10 else f"{percent:.2g}"


def _worst(blocks: Sequence[Block], dtype: str, key: str) -> float:
    return max(float(block.summary["dtypes"][dtype][key]) for block in blocks)


def _reason(diagnosis: Diagnosis) -> str:
    gradient: dict[str, Any] = diagnosis.gradient
    flagged = len(diagnosis.flagged)
    attack = (
        f"the model is random (logits differ by up to {diagnosis.varies.gap:.2g} from forward to forward), which hides what "
        "precision does to its gradients: average over noise, as eot(pgd) does"
        if diagnosis.is_random
        else "whether fp32 spoils the input gradient is not known, since the model cannot run in fp64"
        if gradient["margin"]["fp32"] is None
        else "the fp32 input gradient differs from fp64, so attacks are misled"
        if diagnosis.spoilt
        else "the fp32 input gradient agrees with fp64, so attacks are not misled by precision"
    )
    if diagnosis.verdict == "underflow":
        return f"{gradient['dead_dscores']:.1%} of the score rows get no gradient in fp32; {attack}"
    if diagnosis.verdict == "saturated":
        return f"{flagged} of {len(diagnosis.blocks)} layers are flagged; {attack}"
    return f"no layer is flagged; {attack}"
