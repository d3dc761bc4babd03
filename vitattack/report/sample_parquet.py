"""Parquet files with the record of every sample, a row each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from vitattack.bench.run.results import BenchmarkResult
from vitattack.records.record import SampleRecord

ROWS_IN_MEMORY = 50_000
Part = tuple[Mapping[str, object], Iterable[SampleRecord]]  # columns that all of its records share, and the records
SCHEMA = pa.schema(
    [
        *((name, pa.dictionary(pa.int32(), pa.string())) for name in ("model", "attack", "text", "threat", "data")),
        ("seed", pa.int64()),
        *((name, pa.int64()) for name in ("index", "label", "clean", "adversarial")),
        ("status", pa.dictionary(pa.int32(), pa.string())),
        ("size", pa.float64()),
        *((name, pa.bool_()) for name in ("fragile", "violation")),
        *((name, pa.int64()) for name in ("first_fooled", "forwards", "backwards", "pass_number")),
        ("evidence", pa.string()),  # JSON, since each attack has its own
    ]
)


def write_samples(results: BenchmarkResult, path: Path) -> int:
    """Write a row per sample and finished cell, in the order of the file, and return the number of rows."""

    def parts() -> Iterable[Part]:
        for result in results.cells:
            cell = result.cell
            job = result.content.get("job", {})
            of_cell = {
                "model": cell.label,
                "attack": cell.attack_label,
                "text": job.get("attack", cell.attack),
                "threat": cell.threat,
                "data": job.get("data", cell.data),
                "seed": cell.seed,
            }
            yield of_cell, result.records()

    return write_parts(parts(), path)


def write_parts(parts: Iterable[Part], path: Path, schema: pa.Schema = SCHEMA) -> int:
    """Write a row per record of every part, with the columns of its part; returns the number of rows."""
    count = 0
    with pq.ParquetWriter(path, schema) as out:
        for of_part, records in parts:
            rows: list[dict[str, object]] = []
            for record in records:
                evidence = json.dumps(record.evidence, sort_keys=True)
                rows.append({**of_part, **vars(record), "evidence": evidence})
                if len(rows) == ROWS_IN_MEMORY:
                    out.write_table(pa.Table.from_pylist(rows, schema))
                    count, rows = count + len(rows), []
            if rows:
                out.write_table(pa.Table.from_pylist(rows, schema))
                count += len(rows)
    return count
