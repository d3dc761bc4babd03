"""Records of stored runs as one file: a row per image and run."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vitattack.core.errors import UsageError
from vitattack.core.words import in_csv
from vitattack.records.record import NAMES
from vitattack.records.result import Result, label

OF_RUN = ("run", "model", "attack", "text", "threat", "data", "seed")


def _of_run(result: Result) -> dict[str, Any]:
    job = result.job
    texts = (job.key, job.model, label(job.attack), job.attack, job.threat, job.data, job.seed)
    return dict(zip(OF_RUN, texts, strict=True))


def write_parquet(results: Sequence[Result], path: Path) -> int:
    """Write a typed table, with evidence as JSON; returns the number of rows."""
    import pyarrow as pa

    from vitattack.report.sample_parquet import SCHEMA, write_parts

    schema = pa.schema([("run", pa.dictionary(pa.int32(), pa.string())), *SCHEMA])
    try:
        return write_parts(((_of_run(result), result.records) for result in results), path, schema)
    except OSError as error:
        raise _cannot_write(path, error) from error


def write_csv(results: Sequence[Result], path: Path) -> int:
    """Write text that spreadsheets take for what it is; returns the number of rows."""

    def rows() -> Iterator[list[str]]:
        for result in results:
            of_run = [in_csv(str(value)) for value in _of_run(result).values()]
            for record in result.records:
                content = {**vars(record), "evidence": json.dumps(record.evidence, sort_keys=True)}
                yield [*of_run, *(in_csv(str(content[name])) for name in NAMES)]

    count = 0
    try:
        with path.open("w", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow([*OF_RUN, *NAMES])
            for row in rows():
                writer.writerow(row)
                count += 1
    except OSError as error:
        raise _cannot_write(path, error) from error
    return count


def _cannot_write(path: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot write {path} ({error.strerror or type(error).__name__}): name another file")
