"""Files of figures: their formats, and a style for print with embedded fonts and colours that all can tell apart."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitattack.core.errors import UsageError
from vitattack.core.files import cannot_write, replace_content

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
WIDTHS: dict[Literal[1, 2], float] = {1: 3.3, 2: 6.9}  # inches of a figure across so many columns
# Okabe and Ito (2008): distinct for all kinds of colour vision. Black comes last, it looks most important.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")
STYLE: Any = {
    "font.size": 7,
    "axes.titlesize": 8,
    "axes.labelsize": 7,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#d9dde1",
    "grid.linewidth": 0.5,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "text.parse_math": False,  # a name with two dollar signs is no formula
}
FILES: Any = {
    "pdf.fonttype": 42,  # TrueType, embedded: publishers refuse type 3
    "svg.fonttype": "path",
    "svg.hashsalt": "vitattack",  # equal figures, equal files
}


def check_plot(path: str | None) -> None:
    """Refuse a file whose end names no format."""
    if path is not None and Path(path).suffix.lower() not in SUFFIXES:
        raise UsageError(f"figure '{path}' has no known format: end it in .png, .svg or .pdf")


@contextmanager
def paper_style() -> Iterator[None]:
    """The style of all figures that are made inside."""
    from matplotlib import rc_context

    with rc_context(STYLE):
        yield


def save(figure: Figure, path: Path) -> None:
    """Write a figure whole or not at all, with its fonts embedded."""
    from matplotlib import rc_context

    kind = path.suffix.lower().lstrip(".")
    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
    stream = io.BytesIO()
    with warnings.catch_warnings(), rc_context(FILES):
        warnings.simplefilter("ignore")  # of letters that the font lacks, which are drawn as boxes
        figure.savefig(stream, format=kind, dpi=300, metadata=undated)
    try:
        replace_content(path, stream.getvalue())
    except OSError as error:
        raise cannot_write(path, error) from error


def line_style(at: int) -> dict[str, Any]:
    """Colour and dash of the line with this number: no two of the first 28 are the same."""
    return {"color": COLOURS[at % len(COLOURS)], "linestyle": DASHES[at // len(COLOURS) % len(DASHES)]}
