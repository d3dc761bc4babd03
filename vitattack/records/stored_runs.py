"""The runs of a store as a list, quickly: from the JSON beside the records, without the records themselves."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitattack.core.errors import UsageError
from vitattack.core.files import no_pipe
from vitattack.core.leases import SILENT_AFTER, Sight
from vitattack.core.registry import did_you_mean
from vitattack.core.shown import Shown
from vitattack.core.words import printable
from vitattack.records.job import Job
from vitattack.records.result import Evaluation, Result
from vitattack.records.saved_examples import folder_of
from vitattack.records.sealed import Damaged, NewerSchema, load
from vitattack.records.stats import Accuracy
from vitattack.records.stored_result import WRONG_CONTENT, read_result

if TYPE_CHECKING:
    import pandas as pd

State = Literal["finished", "running", "unfinished", "damaged", "newer"]
SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
ROWS_OF_BATCH = re.compile(rb'^\{"batch":\d+,"pass":1,"rows":(\d+),', re.MULTILINE)
SHORT = 8  # characters of a key in lists


@dataclass(frozen=True, repr=False)
class StoredRun:
    """A job in a store: what it is, how far it is, and the numbers of a finished one."""

    folder: Path
    state: State
    changed: float  # when its files were written last, in seconds since the epoch
    key: str
    job: Job | None = None  # None where it cannot be read
    n: int = 0  # images; of an unfinished run those stored so far
    clean: Accuracy | None = None
    robust: Accuracy | None = None
    passes: float | None = None  # forwards and backwards of an attacked image
    seconds: float | None = None
    doubts: tuple[str, ...] = ()
    has_examples: bool = False

    @property
    def short(self) -> str:
        """What a user may write in place of the whole key."""
        return self.key[:SHORT]

    def __repr__(self) -> str:
        about = f"{self.job.model}, {self.job.attack}, {self.job.threat}, " if self.job else ""
        number = f", robust {self.robust.accuracy:.1%}" if self.robust else ""
        return f"StoredRun({self.short}, {about}{self.state}, n={self.n}{number})"

    @property
    def evaluation(self) -> Evaluation:
        """The run as `evaluate` returned it."""
        return Evaluation((self.result,))

    @cached_property
    def result(self) -> Result:
        """The run with its records; raises UsageError unless it is finished and whole."""
        result = read_result(self.folder.parent, self.folder.name) if self.state == "finished" else None
        if result is None:
            why = {
                "running": "is being written: wait for it",
                "unfinished": f"is not finished ({self.n} images so far): run its command again",
                "newer": "was written by a later version of vitattack: use that one",
            }.get(self.state, "is damaged: run its command again, which repairs it")
            raise UsageError(f"run {self.folder} {why}")
        return result

    def json(self) -> dict[str, Any]:
        return {
            "run": str(self.folder),
            "key": self.key,
            "state": self.state,
            "changed": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.changed)),
            "n": self.n,
            "clean": self.clean.json() if self.clean else None,
            "robust": self.robust.json() if self.robust else None,
            "passes": self.passes,
            "seconds": self.seconds,
            "doubts": list(self.doubts),
            "examples": self.has_examples,
            "job": asdict(self.job) if self.job else None,
        }


@dataclass(frozen=True, repr=False)
class Runs(Shown):
    """The runs of a store, the last one first; `runs["239a1e56"]` and `runs[0]` are one of them."""

    TABLES = "vitattack.report.runs:table_of_runs"

    root: Path
    runs: tuple[StoredRun, ...]
    of: int  # runs in the store

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[StoredRun]:
        return iter(self.runs)

    def __getitem__(self, name: str | int) -> StoredRun:
        return self.runs[name] if isinstance(name, int) else find_run(self.root, name, self.runs)

    def __repr__(self) -> str:
        return f"Runs({str(self.root)!r}, {len(self)} of {self.of})"

    def frame(self) -> pd.DataFrame:
        """A data frame with a row per run."""
        import pandas

        rows = []
        for run in self.runs:
            about = {
                name: getattr(run.job, name) if run.job else None
                for name in ("model", "attack", "threat", "data", "seed")
            }
            clean, robust = (each.accuracy if each else None for each in (run.clean, run.robust))
            figures = {"n": run.n, "clean": clean, "robust": robust, "passes": run.passes, "seconds": run.seconds}
            rows.append({"key": run.key, "state": run.state, **about, **figures, "doubts": len(run.doubts)})
        return pandas.DataFrame(rows)


def runs(
    out: str | Path = "runs", *, model: str | None = None, attack: str | None = None, since: str | None = None
) -> Runs:
    """The runs that a store holds, read without their records; narrowed as by `vitattack runs`."""
    every = stored_runs(Path(out))
    return Runs(Path(out), tuple(filtered(every, model, attack, since)), len(every))


def stored_runs(root: Path) -> list[StoredRun]:
    """All runs of a store, the last one first."""
    if not root.is_dir():
        raise UsageError(f"there is no store '{printable(str(root))}': name the folder of runs with --out")
    try:
        folders = [path for path in root.iterdir() if is_run(path)]
    except OSError as error:
        raise UsageError(f"cannot read '{root}' ({error.strerror}): name another folder with --out") from error
    return sorted(map(stored_run, folders), key=lambda run: (-run.changed, run.folder.name))


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a job, finished or not; those of trainings hold a result.json alone."""
    try:
        return any((folder / name).exists() for name in ("job.json", "samples.jsonl"))
    except OSError:
        return False


def stored_run(folder: Path) -> StoredRun:
    """The run in a folder."""
    run = StoredRun(
        folder, "unfinished", _changed(folder), folder.name.rpartition("-")[2], has_examples=folder_of(folder).is_dir()
    )
    try:
        content = load(folder / "result.json")
        if content is not None and _fits(folder, content):
            return _finished(run, content)
        about = load(folder / "job.json")
        job = Job(**{name: value for name, value in about.items() if name not in ("schema", "key")}) if about else None
    except NewerSchema:
        return replace(run, state="newer")
    except (Damaged, *WRONG_CONTENT):
        return replace(run, state="damaged")
    if content is not None:
        return replace(run, job=job, state="damaged")
    return replace(
        run, job=job, n=_images_so_far(folder), state="running" if _is_being_written(folder) else "unfinished"
    )


def _changed(folder: Path) -> float:
    """When the result was written, or else the last record."""
    result = folder / "result.json"
    files = [result] if result.exists() else [folder / "job.json", *folder.glob("samples*.jsonl")]
    try:
        return max((path.stat().st_mtime for path in files if path.exists()), default=0.0)
    except OSError:
        return 0.0


def _finished(run: StoredRun, content: dict[str, Any]) -> StoredRun:
    n = int(content["n"])
    return replace(
        run,
        state="finished",
        key=str(content["key"]),
        job=Job(**content["job"]),
        n=n,
        clean=_accuracy(content["clean"], n),
        robust=_accuracy(content["robust"], n),
        passes=float(content["forwards"]) + float(content["backwards"]),
        seconds=float(content["seconds"]),
        doubts=tuple(map(str, content["doubts"])),
    )


def _accuracy(content: dict[str, Any], n: int) -> Accuracy:
    accuracy, low, high = (float(content[name]) for name in ("accuracy", "low", "high"))
    return Accuracy(accuracy, low, high, int(content["correct"]), n)


def _fits(folder: Path, content: dict[str, Any]) -> bool:
    """Whether the record file has the size that it had when the result was computed; `runs verify` reads all of it."""
    path = no_pipe(folder / "samples.jsonl")
    return bool(content["schema"] == 1 or path.stat().st_size == content["samples"]["bytes"])


def _images_so_far(folder: Path) -> int:
    """Images in whole batches, in all shards or, where they are merged, in one file."""
    whole = folder / "samples.jsonl"
    try:
        paths = [whole] if whole.exists() and whole.stat().st_size else sorted(folder.glob("samples.shard-*.jsonl"))
        return sum(int(rows) for path in paths for rows in ROWS_OF_BATCH.findall(no_pipe(path).read_bytes()))
    except OSError:
        return 0


def _is_being_written(folder: Path) -> bool:
    """Whether the holder of a lease on a record file is alive, as far as it can be told at once."""
    for path in folder.glob("samples*.jsonl.lease"):
        sight = Sight.of(path)
        holder = sight.holder if sight else None
        if holder is not None and holder.is_near:
            if not holder.process.ended():
                return True
        elif time.time() - path.stat().st_mtime < SILENT_AFTER:
            return True
    return False


def find_run(root: Path, text: str, runs: Sequence[StoredRun] | None = None) -> StoredRun:
    """The run that a text names: a key or the beginning of one, a folder, or `last`."""
    if ("/" in text or text.startswith(".")) and is_run(Path(text)):
        return stored_run(Path(text))
    known = stored_runs(root) if runs is None else runs
    if text == "last" and known:
        return known[0]
    fits = [run for run in known if text in (run.folder.name, run.key)] or [
        run for run in known if len(text) >= 4 and run.key.startswith(text)
    ]
    if len(fits) == 1:
        return fits[0]
    if fits:
        raise UsageError(
            f"'{printable(text)}' fits {len(fits)} runs of '{root}': write more of the key, as in {fits[0].key}"
        )
    if not known:
        raise UsageError(f"'{root}' holds no run: name another store with --out")
    raise UsageError(did_you_mean("run", text, [*(run.short for run in known), *(run.folder.name for run in known)]))


def filtered(
    runs: Sequence[StoredRun],
    model: str | None = None,
    attack: str | None = None,
    since: str | None = None,
    state: State | None = None,
) -> Iterator[StoredRun]:
    """The runs whose model and attack hold these texts, or fit them as patterns, not older than `since`."""
    begin = -inf if since is None else earliest(since)
    for run in runs:
        texts = (run.job.model, run.job.attack) if run.job else ("", "")
        if _holds(texts[0], model) and _holds(texts[1], attack) and run.changed >= begin and state in (None, run.state):
            yield run


def _holds(text: str, wanted: str | None) -> bool:
    from fnmatch import fnmatchcase

    return wanted is None or wanted.lower() in text.lower() or fnmatchcase(text.lower(), wanted.lower())


def earliest(since: str) -> float:
    """The moment that a text such as 3d, 12h or 2026-11-01 means."""
    from datetime import datetime

    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)\s*(s|min|h|d|w)", since.strip())
    if found:
        return time.time() - float(found[1]) * SECONDS[found[2]]
    try:
        return datetime.fromisoformat(since.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"'{printable(since)}' is no time: write 3d, 12h, 30min or a date such as 2026-11-01"
        ) from None
