"""Make the store of the present schema that later versions are tested with: python -m tests.records.make_store FILE."""

from __future__ import annotations

import gzip
import io
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import vitattack
from vitattack.evaluation.listener import EvaluationListener
from vitattack.records.job import Job
from vitattack.records.record import RecordListener, SampleRecord


class _Stop(Exception):
    pass


class _Killed(EvaluationListener):
    """Ends a run after two batches of two."""

    def job(self, job: Job, number: int, count: int) -> RecordListener:
        done = 0

        def watch(records: Sequence[SampleRecord], total: int) -> None:
            nonlocal done
            done += len(records)
            if done >= 4:
                raise _Stop

        return watch


def make(out: Path) -> None:
    """Three finished jobs, one with a second pass and one that learns; an interrupted one; a shard of one."""
    fields: dict[str, Any] = {"data": "cifar10-demo", "threads": 1, "device": "cpu", "out": out, "batch_size": 2}
    vitattack.evaluate("tiny-vit", "pgd(steps=2)", limit=5, **fields)
    with suppress(_Stop):
        vitattack.evaluate("tiny-vit", "fgsm", limit=5, listener=_Killed(), **fields)
    long = {**fields, "threat": "linf:0.0001", "batch_size": 4}
    vitattack.evaluate("tiny-vit", "auto(steps=1, k=1, long=60)", limit=12, **long)
    vitattack.evaluate("tiny-vit", "aas(pgd(steps=1), steps=1, restarts=1, calibration=4)", limit=2, **fields)
    vitattack.evaluate("tiny-vit", "pgd(steps=1)", limit=5, shard=(0, 2), **fields)


def pack(store: Path, file: Path) -> None:
    """Pack a store without whatever differs between machines."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in sorted(store.glob("*/*.json*")):
            entry = tarfile.TarInfo(str(path.relative_to(store)))
            entry.size = path.stat().st_size
            archive.addfile(entry, io.BytesIO(path.read_bytes()))
    file.write_bytes(gzip.compress(packed.getvalue(), mtime=0))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder) / "runs")
        pack(Path(folder) / "runs", Path(sys.argv[1]))
