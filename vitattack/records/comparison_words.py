"""Sides of a comparison in the words of a caller: evaluations, runs, stores, models and attacks by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.records.comparison import Comparison, Side, compared
from vitattack.records.result import Evaluation, Result, label
from vitattack.records.stored_runs import SHORT, StoredRun, find_run, is_run, stored_run, stored_runs


def compare(*sides: Evaluation | Result | StoredRun | str | Path, out: str | Path = "runs") -> Comparison:
    """Compare evaluations, results, stored runs, or names of runs, models, attacks and stores on the same images.

    All are compared with the first: paired differences with Newcombe's interval, McNemar's exact test, and who flipped.
    """
    found = []
    for side in sides:
        if isinstance(side, StoredRun):
            side = side.result
        if isinstance(side, Result):
            side = Evaluation((side,))
        if isinstance(side, Evaluation):
            if not side.finished:
                raise UsageError("an evaluation of which shards are missing cannot be compared: finish it first")
            name = (
                side.job.model
                if len({r.job.attack for r in side.results}) > 1
                else f"{side.job.model} {label(side.job.attack)}"
            )
            found.append(Side(name, side.results))
        else:
            found += sides_of([str(side)], Path(out))
    return compared(found)


def sides_of(words: Sequence[str], root: Path, threat: str | None = None, data: str | None = None) -> list[Side]:
    """The sides that words name, each looked for in the store `root`, with runs under one budget and on one set if asked."""
    known = stored_runs(root) if root.is_dir() else []
    return [_side(word, root, [run for run in known if _fits(run, threat, data)]) for word in words]


def _fits(run: StoredRun, threat: str | None, data: str | None) -> bool:
    if run.job is None or run.state != "finished":
        return threat is None and data is None
    return threat in (None, run.job.threat) and data in (None, run.job.data)


def _side(word: str, root: Path, known: Sequence[StoredRun]) -> Side:
    path = Path(word)
    if is_run(path):
        return _of_run(stored_run(path))
    named = [
        run for run in known if run.job is not None and word in (run.job.model, run.job.attack, label(run.job.attack))
    ]
    finished = [run for run in named if run.state == "finished"]
    if finished:
        return Side(word, tuple(run.result for run in finished))
    if named:
        return _of_run(named[0])  # which says why it cannot be read
    if path.is_dir() and any(map(is_run, path.iterdir())):
        runs = [run for run in stored_runs(path) if run.state == "finished"]
        if not runs:
            raise UsageError(f"the store '{word}' holds no finished run: name another one")
        return Side(word, tuple(run.result for run in runs))
    if word == "last" or any(run.key.startswith(word) or run.folder.name == word for run in known if len(word) >= 4):
        return _of_run(find_run(root, word, known))
    texts = dict.fromkeys(text for run in known if run.job for text in (run.job.model, run.job.attack))
    if not known:
        raise UsageError(f"there is no run '{word}', and no store '{root}': name a folder, or the store with --out")
    unknown = did_you_mean("run, model or attack", word, [*texts, *(run.key[:SHORT] for run in known)])
    raise UsageError(f"{unknown} (compared are finished runs in '{root}', which vitattack eval makes)")


def _of_run(run: StoredRun) -> Side:
    result = run.result
    return Side(f"{result.job.model} {label(result.job.attack)}", (result,))
