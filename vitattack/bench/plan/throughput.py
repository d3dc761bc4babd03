"""Throughput of this machine in FLOPs per second: stated, or measured before and kept in the cache folder."""

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

from vitattack.bench.plan.sizes import SizedModel, sized_model
from vitattack.core import files
from vitattack.core.errors import UsageError
from vitattack.core.locks import cache_lock
from vitattack.core.words import printable

if TYPE_CHECKING:
    from vitattack.bench.cells import Cell

FILE = "throughput.json"
UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
SECONDS = 1.0  # of measurement per model, after a pass to warm up


@dataclass(frozen=True)
class Rate:
    """FLOPs per second, with the source of the figure."""

    flops_per_second: float
    source: str

    def json(self) -> dict[str, Any]:
        return asdict(self)


def parse_flops(text: str) -> float:
    """Parse FLOPs per second: `20T`, `1.5e13` or `300 GFLOP/s`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:e\d{1,2})?)\s*([kMGTP]?)(?:FLOPS?(?:/s)?|FLOP/s)?\s*", text)
    value = float(match[1]) * UNITS[match[2]] if match else 0.0
    if not 1e3 <= value <= 1e21:
        raise UsageError(f"throughput '{printable(text, 40)}' is no number of FLOPs per second: write 20T or 300G")
    return value


def host(device: str, threads: int | None) -> str:
    """Machine, device and threads for which a measurement holds."""
    return f"{platform.node()} {device} {threads or os.cpu_count()}"


class MeasuredRates:
    """Throughputs measured on this machine."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._by_host = _stored()

    def of(self, model: str, threads: int | None) -> Rate | None:
        """Throughput of a model, or else the median of all models measured here."""
        by_model = self._by_host.get(host(self.device, threads), {})
        if model in by_model:
            return Rate(by_model[model], "measured")
        return Rate(statistics.median(by_model.values()), "measured on other models") if by_model else None


def _stored() -> dict[str, dict[str, float]]:
    """Rates by host and model; a broken file counts as empty."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        content = json.loads(files.no_pipe(files.cache_home() / FILE).read_text())
        by_host = content["rates"] if isinstance(content, dict) and content.get("schema") == 1 else {}
        return {
            str(where): {str(name): float(rate) for name, rate in rates.items() if float(rate) > 0}
            for where, rates in by_host.items()
        }
    return {}


def remember(device: str, threads: int | None, rates: dict[str, float]) -> None:
    """Add measurements to the stored ones."""
    files.cache_folder()
    with cache_lock("throughput"):
        by_host = _stored()
        by_host.setdefault(host(device, threads), {}).update(rates)
        with files.replacing(files.cache_home() / FILE) as partial:
            partial.write_text(json.dumps({"schema": 1, "rates": by_host}, indent=2) + "\n")


def calibrate(cells: Iterable[Cell], device: str) -> Iterator[tuple[str, float]]:
    """Measure each model of the cells once, remember the rates, and yield them."""
    for cell, sized in _known(cells):
        yield cell.model, _measured(cell, sized, device)


def measure_one(cells: Iterable[Cell], device: str) -> Iterator[tuple[str, float]]:
    """For every number of threads that this machine has no rate for: measure the model of medium size, and yield its rate."""
    rates, found = MeasuredRates(device), sorted(_known(cells), key=lambda each: each[1].figures.flops)
    for threads in dict.fromkeys(cell.settings.threads for cell, _ in found):
        if rates.of("", threads) is None:
            alike = [each for each in found if each[0].settings.threads == threads]
            cell, sized = alike[len(alike) // 2]
            yield cell.model, _measured(cell, sized, device)


def _known(cells: Iterable[Cell]) -> list[tuple[Cell, SizedModel]]:
    """A cell for each model that can be built here and whose size is known."""
    by_model = {cell.model: cell for cell in reversed([*cells]) if cell.runnable}
    sizes = ((cell, sized_model(cell)) for cell in reversed(by_model.values()))
    return [(cell, sized) for cell, sized in sizes if sized is not None]


def _measured(cell: Cell, sized: SizedModel, device: str) -> float:
    rate = measure(sized, cell.settings.batch_size, device, cell.settings.threads)
    remember(device, cell.settings.threads, {cell.model: rate})
    return rate


def measure(sized: SizedModel, batch_size: int, device: str, threads: int | None) -> float:
    """FLOPs per second of gradient steps, as attacks make them; batches are smaller where one would take longer than that."""
    import time

    import torch

    from vitattack.core.runtime import numerics, resolve_device, usable_cores
    from vitattack.models.victim import frozen

    place = resolve_device(device)

    def seconds_of(x: torch.Tensor) -> float:
        began = time.perf_counter()
        leaf = x.clone().requires_grad_()
        torch.autograd.grad(victim(leaf).sum(), leaf)
        if place.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    with numerics(threads or usable_cores()), torch.random.fork_rng(devices=[]):
        victim = sized.build().to(place).float().eval()
        image = victim.grey().to(place)
        with frozen(victim):
            seconds_of(image)  # the first pass is slow
            affordable = int(SECONDS / seconds_of(image))
            x = image.expand(max(1, min(batch_size, affordable)), -1, -1, -1)
            count, seconds = 0, 0.0
            while count == 0 or seconds < SECONDS:
                seconds += seconds_of(x)
                count += 1
    return count * len(x) * (sized.figures.flops + sized.figures.backward) / seconds
