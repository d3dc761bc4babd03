"""Outcome of a run: the numbers it printed and the records it stored, without what differs from run to run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .launcher import Ended

# Times; processes; the state of the repository, which may be edited meanwhile; where a file was fetched from.
DROPPED = frozenset({"seconds", "hours", "workers", "git", "date", "file", "from_store", "written"})
UNEXPECTED = (
    "Traceback (most recent call last)",
    "the run failed (",
    "Error: ",
    "Fatal Python error",
    "Segmentation fault",
)


@dataclass(frozen=True)
class Outcome:
    """The numbers of a finished run and its record files by name."""

    numbers: Any
    records: dict[str, bytes]


def stripped(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: stripped(value) for key, value in content.items() if key not in DROPPED}
    return [stripped(value) for value in content] if isinstance(content, list) else content


def numbers(printed: str) -> Any:
    """The JSON object a command printed; None where it printed none."""
    try:
        return stripped(json.loads(printed))
    except ValueError:
        return None


def record_files(folder: Path) -> dict[str, bytes]:
    """All files that records are appended to."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(_record_paths(folder))}


def sizes(folder: Path) -> dict[str, int]:
    """Sizes of the record files, but for those that are written anew from a whole copy beside them."""
    found = {}
    for path in _record_paths(folder):
        try:
            size = path.stat().st_size
            if not any(path.parent.glob(f".{path.name}.*")):
                found[str(path.relative_to(folder))] = size
        except OSError:
            continue
    return found


def _record_paths(folder: Path) -> Iterator[Path]:
    runs = folder / "runs"
    try:
        jobs = [path for path in runs.iterdir() if not path.name.startswith(".")] if runs.is_dir() else []
    except OSError:
        return
    for job in jobs:
        yield from (path for path in job.glob("samples*.jsonl") if path.is_file())
        yield from (path for path in job.glob("*/samples*.jsonl") if path.is_file())


def steps(folder: Path) -> bytes:
    """The log of a training without its times."""
    lines = []
    for path in sorted(folder.glob("runs/train/*/*.jsonl")):
        for line in path.read_bytes().splitlines():
            lines.append(json.dumps(stripped(json.loads(line)), sort_keys=True).encode())
    return b"\n".join(lines)


def outcome(folder: Path, ended: Ended) -> Outcome:
    merged = {name: content for name, content in record_files(folder).items() if name.endswith("samples.jsonl")}
    log = steps(folder)
    return Outcome(numbers(ended.out), {**merged, **({"log": log} if log else {})})


def doubled(records: dict[str, bytes]) -> int:
    """Records that stand twice in one file, in the same pass."""
    count = 0
    for name, content in records.items():
        if name == "log":
            continue
        seen: Counter[tuple[int, int]] = Counter()
        for line in content.splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and "index" in record:
                seen[record["index"], record.get("pass", record.get("pass_number", 1))] += 1
        count += sum(times - 1 for times in seen.values())
    return count


def unclean(ended: Ended) -> str | None:
    """The last line of an error that nobody foresaw."""
    if any(mark in ended.err or mark in ended.out for mark in UNEXPECTED):
        return reason(ended)
    if ended.hung:
        return "hung"
    if ended.code < 0:
        return f"ended by signal {-ended.code}"
    return None


def refused(ended: Ended) -> bool:
    """Whether the command ended with one line that says why, or named a reason for every cell that failed."""
    lines = [line for line in ended.err.strip().splitlines() if line]
    if ended.code not in (1, 2):
        return False
    failed = [cell for cell in cells(ended) if cell["status"] == "failed"]
    return bool(lines and lines[-1].startswith("vitattack: ")) or any(cell["error"] for cell in failed)


def reason(ended: Ended) -> str:
    """What a command that was refused says."""
    failed = [cell["error"] for cell in cells(ended) if cell["status"] == "failed"]
    return failed[0] if failed else (ended.err.strip().splitlines() or ["?"])[-1]


def cells(ended: Ended) -> list[dict[str, Any]]:
    """The cells of a benchmark, if this is one."""
    content = numbers(ended.out)
    return list(content.get("cells", ())) if isinstance(content, dict) and "counts" in content else []


def other_cells(ended: Ended, undisturbed: Any) -> list[str]:
    """Cells of a benchmark that has failed elsewhere, and whose numbers are not the undisturbed ones."""
    if not cells(ended):
        return []
    names = ("model", "attack", "threat", "seed")
    known = {tuple(cell[name] for name in names): cell for cell in undisturbed.get("cells", ())}
    measured = [(cell, known[tuple(cell[name] for name in names)]) for cell in cells(ended) if cell["n"] is not None]
    numbers = ("measured", "low", "high", "n")
    return [
        f"{cell['model']} {cell['attack']}" for cell, whole in measured if any(cell[k] != whole[k] for k in numbers)
    ]
