"""Care of stores: runs deleted, checked for damage, and merged from several stores into one."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitattack.core.errors import UsageError, VitattackError
from vitattack.core.files import cannot_write, no_pipe
from vitattack.core.progress import in_stage
from vitattack.records.record_file import RecordFile
from vitattack.records.saved_examples import FOLDER, SavedExamples, folder_of
from vitattack.records.scan import scan
from vitattack.records.schema_1 import is_of_schema_1
from vitattack.records.sealed import Damaged, NewerSchema, load
from vitattack.records.stored_result import read_result
from vitattack.records.stored_runs import StoredRun, is_run, stored_run, stored_runs

WHOLE_FILES = ("job.json", "result.json", "probe.json", "learned.json")
NAME_OF_RUN = re.compile(r"-[0-9a-f]{16}\Z")  # it ends in the key of its job
Fate = Literal["added", "completed", "equal", "kept"]


def remove_run(run: StoredRun) -> None:
    """Delete the folder of a run, unless a process is writing it."""
    if run.folder.is_symlink():
        raise UsageError(f"{run.folder} is a link to a folder elsewhere: delete the link itself")
    if not NAME_OF_RUN.search(run.folder.resolve().name):
        raise UsageError(f"{run.folder} has not the name of a run, it may hold other things: delete it by hand")
    records = sorted(run.folder.glob("samples*.jsonl")) or [run.folder / "samples.jsonl"]
    for path in records:
        with closing(RecordFile(path)):  # raises Locked while somebody writes it
            pass
    try:
        shutil.rmtree(run.folder)
    except OSError as error:
        raise UsageError(f"cannot delete {run.folder} ({error.strerror}): delete what is left by hand") from error


def damage_of(run: StoredRun) -> list[str]:
    """Everything about the files of a run that is not as it was written, a line each."""
    found = []
    for name in WHOLE_FILES:
        try:
            load(run.folder / name)
        except (Damaged, NewerSchema) as error:
            found.append(f"{name}: {error}")
    for path in sorted(run.folder.glob("samples*.jsonl")):
        if ".damaged-" not in path.name:
            found += _damage_of_records(path)
    if run.state == "finished" and read_result(run.folder.parent, run.folder.name) is None and not found:
        found.append("result.json: it is not the result of the records beside it")
    examples = SavedExamples(run.folder)
    found += [f"{FOLDER}/{name}: its checksum does not fit" for name in examples.damage()]
    if run.state == "finished" and folder_of(run.folder).is_dir() and len(examples) < run.n:
        found.append(f"{FOLDER}: examples of {run.n - len(examples)} of {run.n} images are missing")
    return found


def _damage_of_records(path: Path) -> list[str]:
    try:
        content = no_pipe(path).read_bytes()
        if is_of_schema_1(content):
            return []
        return [f"{path.name}: {damage}" for damage in scan(path, content).damage]
    except (OSError, VitattackError) as error:
        return [f"{path.name}: {error}"]


@dataclass(frozen=True)
class Merged:
    """What became of a run on its way into another store."""

    run: Path
    fate: Fate
    remark: str = ""


def merge_stores(sources: Sequence[Path], into: Path) -> list[Merged]:
    """Copy the runs of stores into one; a finished run there is never replaced.

    Shards of one job that were run on several machines come together in one folder; running the command of any shard once
    more there ends the job.
    """
    for source in sources:
        if source.exists() and into.exists() and source.samefile(into):
            raise UsageError(f"'{source}' is the store to merge into: name the others alone")
    runs = [run for source in sources for run in sorted(stored_runs(source), key=lambda run: run.folder.name)]
    try:
        into.mkdir(parents=True, exist_ok=True)
        return [_merge(run, into / run.folder.name) for run in in_stage("merging runs", runs)]
    except OSError as error:
        raise cannot_write(into, error) from error


def _merge(run: StoredRun, place: Path) -> Merged:
    if run.state in ("running", "damaged", "newer"):
        return Merged(run.folder, "kept", f"left where it is: it is {run.state}")
    if not is_run(place):
        _copy(run.folder, place)
        return Merged(run.folder, "added", "" if run.state == "finished" else "unfinished")
    there = stored_run(place)
    if there.state == "finished":
        same = run.state != "finished" or _records(run.folder) == _records(place)
        if same:
            _copy_examples(run.folder, place)
        return Merged(run.folder, "equal" if same else "kept", "" if same else "finished in both with other records")
    if there.state in ("running", "newer"):
        return Merged(run.folder, "kept", f"in '{place.parent}' it is {there.state}")
    if run.state == "finished":
        remove_run(there)
        _copy(run.folder, place)
        return Merged(run.folder, "completed")
    return _merge_unfinished(run, place)


def _merge_unfinished(run: StoredRun, place: Path) -> Merged:
    """Add shards that are not there yet; of a shard that is in both, the longer file counts."""
    count = 0
    for path in sorted(run.folder.glob("samples*.jsonl")):
        other = place / path.name
        if ".damaged-" in path.name or (other.exists() and other.stat().st_size >= path.stat().st_size):
            continue
        for name in (path.name, path.name.replace("samples", "events", 1)):
            if (run.folder / name).exists():
                _copy_file(run.folder / name, place / name)
        count += 1
    for name in ("learned.json", "probe.json"):
        if (run.folder / name).exists() and not (place / name).exists():
            _copy_file(run.folder / name, place / name)
    _copy_examples(run.folder, place)
    remark = f"{count} record files; run the command of a shard again, which ends the job" if count else ""
    return Merged(run.folder, "completed" if count else "equal", remark)


def _records(folder: Path) -> bytes:
    return no_pipe(folder / "samples.jsonl").read_bytes()


def _copy(folder: Path, place: Path) -> None:
    """Copy a run so that it is there whole or not at all."""
    beside = place.with_name(f".{place.name}.merging")
    shutil.rmtree(beside, ignore_errors=True)
    shutil.copytree(folder, beside, ignore=shutil.ignore_patterns("*.lease", "*.lease.*", ".*"))
    beside.rename(place)


def _copy_examples(folder: Path, place: Path) -> None:
    for path in folder_of(folder).glob("*.safetensors"):
        target = folder_of(place) / path.name
        if not target.exists():
            target.parent.mkdir(exist_ok=True)
            _copy_file(path, target)


def _copy_file(path: Path, target: Path) -> None:
    beside = target.with_name(f".{target.name}.merging")
    shutil.copy2(path, beside)
    beside.replace(target)
