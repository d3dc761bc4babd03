"""Tables of the analyses: all of them a line each, and one with its parameters."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

from vitattack.analyses.catalogue import ANALYSES
from vitattack.core.table import Table


def analyses_table() -> tuple[Table, list[dict[str, Any]]]:
    """Every analysis with what it measures and the paper it is from."""
    known = {name: ANALYSES[name] for name in ANALYSES.in_order}
    rows = [(name, kind.summary(), kind.paper) for name, kind in known.items()]
    content = [{"name": name, "summary": summary, "paper": paper} for name, summary, paper in rows]
    notes = ("vitattack analyze info NAME: one of them whole, with its paper and parameters.",)
    return Table("Analyses", ("name", "measures"), [row[:2] for row in rows], notes, left=2, line_each=True), content


def analysis_description(name: str) -> tuple[Table, dict[str, Any]]:
    """The parameters of an analysis with their defaults."""
    kind = ANALYSES[name]
    parameters = {field.name: (str(field.type), field.default) for field in fields(kind)}
    rows = [(key, hint, _text(default)) for key, (hint, default) in parameters.items()]
    if kind.threat is not None:
        rows.append(("--threat", "budget", kind.threat))
    about = " ".join(inspect.cleandoc(kind.__doc__ or "").split())
    defaults = {key: default for key, (_, default) in parameters.items()}
    if kind.data is not None:
        rows.append(("--data", "data set", kind.data))
    if kind.images is not None:
        rows.append(("--limit", "images", str(kind.images)))
    content = {"name": name, "summary": kind.summary(), "about": about, "paper": kind.paper, "parameters": defaults}
    table = Table(f"{name}: {kind.summary()}", ("parameter", "takes", "default"), rows, (about, kind.paper), left=3)
    return table, {**content, "threat": kind.threat, "images": kind.images}


def _text(default: Any) -> str:
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
