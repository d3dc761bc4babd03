"""Parquet file with the record of every sample of a benchmark."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from vitattack.bench.run.results import BenchmarkResult

ROWS_IN_MEMORY = 50_000
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
    count = 0
    with pq.ParquetWriter(path, SCHEMA) as out:
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
            rows: list[dict[str, object]] = []
            for record in result.records():
                evidence = json.dumps(record.evidence, sort_keys=True)
                rows.append({**of_cell, **vars(record), "evidence": evidence})
                if len(rows) == ROWS_IN_MEMORY:
                    out.write_table(pa.Table.from_pylist(rows, SCHEMA))
                    count, rows = count + len(rows), []
            if rows:
                out.write_table(pa.Table.from_pylist(rows, SCHEMA))
                count += len(rows)
    return count
