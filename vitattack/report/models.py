"""Tables of the zoo: one line per entry, and one entry in full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from vitattack.core.table import Table
from vitattack.models.weights.cache import weights_location
from vitattack.models.zoo.entry import Reported, ZooEntry

if TYPE_CHECKING:  # a list of models needs no torch
    from vitattack.models.zoo.figures import ModelFigures

ELSEWHERE = ("not public", "not cached", "by hand")


def zoo_table(entries: Iterable[ZooEntry]) -> tuple[Table, list[dict[str, Any]]]:
    """Return a table with one line per entry, and the entries in full as JSON."""
    keys = ("id", "data", "trained for", "clean % (n)", "robust % (n)", "weights")
    rows, full = [], []
    for entry in entries:
        clean = next((r for r in entry.reported if r.metric == "clean"), None)
        robust = _robust(entry)
        numbers = [f"{one.value:.1f} ({_n(one)})" if one else "-" for one in (clean, robust)]
        location = location_of(entry)
        rows.append((entry.id, entry.dataset, entry.threat or "-", *numbers, location))
        full.append({**plain_entry(entry), "whereabouts": location})
    notes = (
        "robust: the lowest number reported at what it was trained for; attack and images: vitattack models info ID",
    )
    return Table(f"{len(rows)} models of the zoo", keys, rows, notes, left=6, whole=True), full


def _robust(entry: ZooEntry) -> Reported | None:
    robust = [r for r in entry.reported if r.metric == "robust"]
    within = [r for r in robust if entry.threat is not None and entry.threat in r.protocol]
    return min(within or robust, key=lambda r: r.value, default=None)


def is_local(entry: ZooEntry) -> bool:
    """Whether the weights are on this machine."""
    return location_of(entry) not in ELSEWHERE


def location_of(entry: ZooEntry) -> str:
    """Return where the weights are, in a word or two."""
    if entry.weights is None and entry.page:
        return "by hand"
    return weights_location(entry.weights, entry.id)


def entry_json(entry: ZooEntry, figures: ModelFigures | None) -> dict[str, Any]:
    """Return the entry as JSON; `figures` is null for a model that this version cannot build."""
    return {**plain_entry(entry), "whereabouts": location_of(entry), "figures": figures.json() if figures else None}


def plain_entry(entry: ZooEntry) -> dict[str, Any]:
    """Return an entry as plain data, its addresses without their queries."""
    weights = {**asdict(entry.weights), "mirrors": entry.weights.shown} if entry.weights else None
    return {**asdict(entry), "weights": weights}


def entry_table(entry: ZooEntry, figures: ModelFigures | None) -> Table:
    """Return all facts of an entry as a table; numbers are shown with their protocol."""
    arch = ", ".join([entry.arch or "cannot be built here", *(f"{k}={v}" for k, v in entry.arch_kwargs.items())])
    normalize = entry.normalize
    rows = {
        "what it is": entry.summary,
        "architecture": arch,
        "adapter": ", ".join(entry.adapter),
        "parameters": f"{figures.parameters:,}" if figures else "",
        "FLOPs": f"{_flops(figures.flops)} per image (a multiply-add is two)" if figures else "",
        "attention": _attention(figures) if figures else "",
        "input": f"{entry.input} px, {entry.num_classes} classes, transform {entry.transform}",
        "normalisation": f"mean {_numbers(normalize['mean'])}, std {_numbers(normalize['std'])}"
        if normalize
        else "none: takes [0,1]",
        "data": entry.dataset,
        "trained for": entry.threat or "clean accuracy",
        "reported": "\n".join(map(_with_protocol, entry.reported)),
        "weights": location_of(entry),
        "from": "\n".join(entry.weights.shown) if entry.weights else "",
        "sha256": (entry.weights.sha256 or "pinned on first download") if entry.weights else "",
        "page": entry.page or "",
        "licence": entry.licence,
        "paper": entry.paper or "",
        "read in": entry.source or "",
        "unverified": ", ".join(entry.unverified),
        "notes": entry.notes or "",
        "recipe": "\n".join(f"{key}: {value}" for key, value in entry.recipe.items()),
    }
    return Table(entry.id, ("", ""), [(key, value) for key, value in rows.items() if value], left=2)


def _attention(figures: ModelFigures) -> str:
    if not figures.attention:
        return "none"
    kinds = Counter((a.heads, a.fused) for a in figures.attention)
    layers = (f"{n} of {heads} heads{', fused' if fused else ''}" for (heads, fused), n in kinds.items())
    return f"{len(figures.attention)} layers: {'; '.join(layers)}"


def _with_protocol(one: Reported) -> str:
    return f"{one.metric} {one.value:g} %, n = {_n(one)}, {one.protocol} ({one.source})"


def _n(one: Reported) -> str:
    return "?" if one.n is None else f"{one.n}"


def _flops(count: int) -> str:
    return f"{count / 1e9:.2f} G" if count >= 1e7 else f"{count / 1e6:.2f} M"


def _numbers(values: Iterable[float]) -> str:
    return ", ".join(f"{v:g}" for v in values)
