"""Results of a benchmark for other programs: JSON, a table of plain numbers, and a folder with every form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vitattack.bench.compare import ComparedNumber, compared_numbers, worst_cases
from vitattack.bench.fronts import size_fronts
from vitattack.bench.run.results import BenchmarkResult
from vitattack.bench.schema import CLEAN
from vitattack.core.table import Table, as_csv
from vitattack.report.bench_tables import bench_notes, bench_tables

COLUMNS = (
    *("model", "attack", "threat", "seed", "status", "measured", "low", "high", "n", "published", "published_n"),
    *("difference", "difference_low", "difference_high", "inside", "source"),
)


def bench_json(results: BenchmarkResult) -> dict[str, Any]:
    """The JSON of a benchmark, accuracies in [0,1]; the clean accuracy of a model is a cell with the attack `clean`."""
    numbers = compared_numbers(results)
    fronts = size_fronts(results, numbers)
    return {
        "schema": 1,
        "file": results.bench.path,
        "title": results.bench.title,
        "data": results.bench.data,
        "cells": [_number_json(number, results.bench.source) for number in numbers],
        "worst_case": [_number_json(number, results.bench.source) for number in worst_cases(results)],
        "front": [
            {
                "attack": front.attack,
                "threat": front.threat,
                "points": [point._asdict() for point in front.points],
                "left_out": list(front.left_out),
            }
            for front in fronts
        ],
        "counts": dict(results.counts),
    }


def _number_json(number: ComparedNumber, source: str) -> dict[str, Any]:
    measured, published, gap, result = number.measured, number.published, number.gap, number.result
    return {
        "model": number.model,
        "attack": number.attack,
        "threat": number.threat or None,
        "measured": measured.accuracy if measured else None,
        "low": measured.low if measured else None,
        "high": measured.high if measured else None,
        "published": round(published.value / 100, 6) if published else None,
        "source": (published.source or source) if published else None,
        "n": measured.n if measured else None,
        "status": number.status,
        "seed": number.seed,
        "published_n": published.n if published else None,
        "difference": gap.difference if gap else None,
        "difference_low": gap.low if gap else None,
        "difference_high": gap.high if gap else None,
        "inside": gap.inside if gap else None,
        "id": result.cell.model or None,
        "text": (result.cell.attack or None) if number.attack != CLEAN else None,
        "error": result.error or None,
        "doubts": list(result.content.get("doubts", ())),
        "run": str(result.folder) if result.folder else None,
    }


def number_table(results: BenchmarkResult) -> Table:
    """One row per number, shares in [0,1]."""
    content = bench_json(results)
    rows = [tuple(_plain(cell[column]) for column in COLUMNS) for cell in (*content["cells"], *content["worst_case"])]
    return Table(results.bench.title, COLUMNS, rows, bench_notes(results, compared_numbers(results)), left=5)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def save_bench(results: BenchmarkResult, folder: Path, *, intervals: bool = True) -> list[Path]:
    """Write every form to a folder: NAME.md, .tex, .csv with .notes.txt, .json, and NAME.parquet with a row per sample."""
    from vitattack.report.sample_parquet import write_samples

    folder.mkdir(parents=True, exist_ok=True)
    tables = bench_tables(results, intervals=intervals)
    rows, remarks = as_csv([number_table(results)])
    texts = {
        "md": "\n".join(table.markdown() for table in tables),
        "tex": "\n".join(table.latex() for table in tables),
        "csv": rows,
        "notes.txt": remarks,
        "json": json.dumps(bench_json(results), indent=2) + "\n",
    }
    paths = []
    for suffix, text in texts.items():
        paths.append(folder / f"{results.bench.name}.{suffix}")
        paths[-1].write_text(text)
    paths.append(folder / f"{results.bench.name}.parquet")
    write_samples(results, paths[-1])
    return paths
