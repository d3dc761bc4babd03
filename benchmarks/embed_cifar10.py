"""Extract the embedded image sets from the hub's CIFAR-10 files, with original row numbers in column `index`.

python benchmarks/embed_cifar10.py DATA_DIR embedded
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from vitattack.data.catalogue import DATA_SETS
from vitattack.data.hub_sets import HubSet


def first_of_each_class(labels: list[int], count: int) -> list[int]:
    """The first `count` rows in the order of the file, spread evenly over the ten classes."""
    quota = {c: count // 10 + (c < count % 10) for c in range(10)}
    rows = []
    for row, label in enumerate(labels):
        if quota[label] > 0:
            quota[label] -= 1
            rows.append(row)
    return rows


def main(data_dir: Path, out: Path) -> None:
    for name, source, count in (("cifar10-demo", "cifar10", 1000), ("cifar10-calib", "cifar10-train", 128)):
        entry = DATA_SETS[source]
        assert isinstance(entry, HubSet)
        table = pq.read_table(data_dir / entry.repo / entry.file)
        rows = first_of_each_class(table["label"].to_pylist(), count)
        part = table.take(rows).append_column("index", pa.array(rows, pa.int32()))
        pq.write_table(part.replace_schema_metadata(None), out / f"{name}.parquet", compression="none")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
