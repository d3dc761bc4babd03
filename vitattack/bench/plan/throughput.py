"""How many FLOPs per second a machine makes of a model: stated, or measured before and kept in the cache folder."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from vitattack.bench.plan import facts
from vitattack.bench.plan.prices import Passes
from vitattack.core import files
from vitattack.core.errors import UsageError
from vitattack.core.words import printable
from vitattack.models.zoo.entries import Entry, entries

if TYPE_CHECKING:
    from vitattack.bench.cells import Cell

FILE = "throughput.json"
UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
SECONDS = 1.0  # that a model is measured for, after a pass to warm up
STEPS = Passes(1, 1)  # what is measured: the step of a gradient attack


@dataclass(frozen=True)
class Rate:
    """FLOPs per second, and who says so."""

    flops_per_second: float
    source: str

    @staticmethod
    def stated(flops_per_second: float) -> Rate:
        return Rate(flops_per_second, "stated")

    def json(self) -> dict[str, Any]:
        return asdict(self)


def parse(text: str) -> float:
    """`20T`, `1.5e13`, `300 GFLOP/s` -> FLOPs per second."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:e\d{1,2})?)\s*([kMGTP]?)(?:FLOPS?(?:/s)?|FLOP/s)?\s*", text)
    value = float(found[1]) * UNITS[found[2]] if found else 0.0
    if not 1e3 <= value <= 1e21:
        raise UsageError(f"throughput '{printable(text, 40)}' is no number of FLOPs per second: write 20T or 300G")
    return value


def host(device: str, threads: int | None) -> str:
    """Where a measurement holds."""
    return f"{platform.node()} {device} {threads or os.cpu_count()}"


class Rates:
    """What was measured on this machine."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.known = _stored()

    def of(self, model: str, threads: int | None) -> Rate | None:
        """Of the model itself, else the median of those that were measured here."""
        here: dict[str, float] = self.known.get(host(self.device, threads), {})
        if model in here:
            return Rate(here[model], "measured")
        return Rate(statistics.median(here.values()), "measured on other models") if here else None


def _stored() -> dict[str, dict[str, float]]:
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):  # measured again, then
        content = json.loads((files.cache_home() / FILE).read_text())
        found = content["rates"] if isinstance(content, dict) and content.get("schema") == 1 else {}
        return {
            str(where): {str(name): float(rate) for name, rate in rates.items() if float(rate) > 0}
            for where, rates in found.items()
        }
    return {}


def keep(device: str, threads: int | None, rates: dict[str, float]) -> None:
    """Adds measurements to those that are kept."""
    files.cache_folder()
    with files.cache_lock("throughput"):
        known = _stored()
        known.setdefault(host(device, threads), {}).update(rates)
        with files.replacing(files.cache_home() / FILE) as beside:
            beside.write_text(json.dumps({"schema": 1, "rates": known}, indent=2) + "\n")


def calibrate(cells: Iterable[Cell], device: str) -> Iterator[tuple[str, float]]:
    """Measures a gradient step of every model of the cells once, with random weights, and keeps what comes out."""
    done: set[str] = set()
    for cell in cells:
        entry = entries().get(cell.model)
        if cell.runnable and cell.model not in done and entry is not None and facts.figures(entry) is not None:
            done.add(cell.model)
            rate = measure(entry, cell.settings.batch_size, device, cell.settings.threads)
            keep(device, cell.settings.threads, {cell.model: rate})
            yield cell.model, rate


def measure(entry: Entry, batch_size: int, device: str, threads: int | None) -> float:
    """FLOPs per second of forwards with their gradients, in the way attacks make them; no weights are fetched."""
    import time

    import torch

    from vitattack.core.runtime import numerics, resolve_device, usable_cores
    from vitattack.models.victim import frozen
    from vitattack.models.zoo.load import victim_of

    figures = facts.figures(entry)
    assert figures is not None
    place = resolve_device(device)

    def step(x: torch.Tensor) -> None:
        leaf = x.clone().requires_grad_()
        torch.autograd.grad(victim(leaf).sum(), leaf)
        if place.type == "cuda":
            torch.cuda.synchronize()

    with numerics(threads or usable_cores()), torch.random.fork_rng(devices=[]):
        victim = victim_of(entry).to(place).float().eval()
        x = victim.grey().expand(batch_size, -1, -1, -1).to(place)
        with frozen(victim):
            step(x[:1])
            began, count = time.perf_counter(), 0
            while count == 0 or time.perf_counter() - began < SECONDS:
                step(x)
                count += 1
            seconds = time.perf_counter() - began
    return count * batch_size * (figures.flops + figures.backward) / seconds
