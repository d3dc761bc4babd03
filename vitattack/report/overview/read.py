"""Words to an overview: stores, runs by folder or key, and files that other commands wrote with --json."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from vitattack.core.errors import UsageError
from vitattack.records.sealed import load_intact
from vitattack.records.stored_result import read_result
from vitattack.records.stored_runs import find_run, is_run, stored_run
from vitattack.report.overview.attachments import Attachments, read_attachments
from vitattack.report.overview.overview import Overview
from vitattack.report.overview.run import ShownRun


def read_everything(words: Sequence[str], store: Path = Path("runs")) -> tuple[Overview, Attachments]:
    """What some words name; without any, all of the store. Keys are looked for in the store."""
    paths = [_path(word, store) for word in words] or [store]
    files = [path for path in paths if path.is_file()]
    return read_overview(path for path in paths if path not in files), read_attachments(files)


def _path(word: str, store: Path) -> Path:
    """The path that a word is, or that of the run whose key it is."""
    path = Path(word)
    return path if path.exists() or "/" in word or not store.is_dir() else find_run(store, word).folder


def run_folders(paths: Iterable[Path]) -> list[Path]:
    """The folders of runs below some paths, each once; raises UsageError for a path that does not exist."""
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise UsageError(
                f"'{path}' is no folder: name one that eval --out wrote, by default runs, or one run in it"
            )
        for folder in [path] if is_run(path) else sorted(filter(is_run, path.iterdir())):
            found.setdefault(folder.resolve(), folder)
    return [*found.values()]


def read_overview(paths: Iterable[Path]) -> Overview:
    """Everything in the runs below some paths; one run is read at a time, since its records are large."""
    runs, unfinished = [], []
    for folder in run_folders(paths):
        result = read_result(folder.resolve().parent, folder.resolve().name)
        if result is None:
            unfinished.append(stored_run(folder))
            continue
        model = (load_intact(folder / "result.json") or {}).get("model")
        runs.append(ShownRun.of(result, folder, model if isinstance(model, dict) else {}))
    return Overview(tuple(runs), tuple(unfinished))
