"""Changes to stored records that leave no trace, as if the run had gone otherwise."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from vitattack.records.record import SampleRecord
from vitattack.records.scan import scan
from vitattack.records.sealed import sealed_text


def edit_records(folder: Path, change: Callable[[SampleRecord], SampleRecord]) -> None:
    """Change the records of a finished job and whatever of its files vouches for them."""
    path, result = folder / "samples.jsonl", folder / "result.json"
    batches = scan(path, path.read_bytes()).batches
    content = b"".join(replace(batch, records=tuple(map(change, batch.records))).encoded() for batch in batches)
    path.write_bytes(content)
    samples = {"bytes": len(content), "crc": f"{zlib.crc32(content):08x}"}
    result.write_text(sealed_text({**json.loads(result.read_text()), "samples": samples}))
