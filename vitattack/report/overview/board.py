"""A leaderboard: what whole and finished runs say of each model, by images and threat; others are left out with a reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from vitattack.core.errors import UsageError
from vitattack.records.sealed import load_intact
from vitattack.records.stats import Accuracy
from vitattack.records.store_care import damage_of
from vitattack.records.stored_runs import is_run, stored_run
from vitattack.report.overview.overview import ImageSet, Overview, Row
from vitattack.report.overview.run import ShownRun

AUTO, AUTOATTACK = ("auto",), ("autoattack", "autoattack_ref")


@dataclass(frozen=True)
class Entry:
    """A model on a board, with the lowest accuracy that each kind of attack left."""

    row: Row

    @cached_property
    def auto(self) -> ShownRun | None:
        return self._lowest(AUTO)

    @cached_property
    def autoattack(self) -> ShownRun | None:
        return self._lowest(AUTOATTACK)

    @cached_property
    def other(self) -> ShownRun | None:
        """The run of any other attack, or of examples made elsewhere, that left least."""
        rest = [run for run in self.row.runs if attack_name(run) not in (*AUTO, *AUTOATTACK)]
        return min(rest, key=_left, default=None)

    @property
    def certificate(self) -> tuple[int, int] | None:
        """Planted examples that `auto` found, and how many there were."""
        section = self.auto.section("certificate") if self.auto else None
        content: Any = section.content if section else {}
        tested, found = content.get("tested"), content.get("found")
        count = found.get(self.auto.job.attack) if self.auto and isinstance(found, dict) else None
        return (count, tested) if isinstance(count, int) and isinstance(tested, int) and tested > 0 else None

    def _lowest(self, names: Sequence[str]) -> ShownRun | None:
        return min((run for run in self.row.runs if attack_name(run) in names), key=_left, default=None)

    def json(self) -> dict[str, Any]:
        worst = self.row.worst
        certificate = self.certificate
        return {
            "model": self.row.model,
            "weights": self.row.runs[0].job.weights,
            "clean": _share(self.row.clean),
            "auto": _share(self.auto.robust) if self.auto else None,
            "autoattack": _share(self.autoattack.robust) if self.autoattack else None,
            "other": {"attack": self.other.job.attack, **_share(self.other.robust)} if self.other else None,
            "worst_case": _share(worst),
            "certificate": {"found": certificate[0], "planted": certificate[1]} if certificate else None,
            "passes": self.row.passes,
            "seconds": self.row.seconds,
            "doubts": list(self.row.doubts),
            "runs": [run.folder.name for run in self.row.runs],
        }


@dataclass(frozen=True)
class Board:
    """The models that were attacked under one threat on the same images, the one that withstands most first."""

    images: ImageSet
    threat: str
    entries: tuple[Entry, ...]

    def json(self) -> dict[str, Any]:
        content = [entry.json() for entry in self.entries]
        return {"data": self.images.data, "n": self.images.n, "threat": self.threat, "entries": content}


@dataclass(frozen=True)
class LeftOut:
    """A run that is on no board, and why."""

    folder: Path
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Leaderboard:
    """All boards of some folders, the one with the most models first."""

    boards: tuple[Board, ...]
    left_out: tuple[LeftOut, ...]

    def json(self) -> dict[str, Any]:
        left_out = [{"run": str(each.folder), "reasons": list(each.reasons)} for each in self.left_out]
        return {"schema": 1, "boards": [board.json() for board in self.boards], "left_out": left_out}


def read_leaderboard(folders: Iterable[Path]) -> Leaderboard:
    """The boards of all runs in stores and in folders of stores; every file of a run is checked before it counts."""
    shown: list[ShownRun] = []
    left_out: list[LeftOut] = []
    for folder in _run_folders(folders):
        run = stored_run(folder)
        reasons = damage_of(run) or ([] if run.state == "finished" else [f"it is {run.state}"])
        if reasons:
            left_out.append(LeftOut(folder, tuple(reasons)))
            continue
        model = (load_intact(folder / "result.json") or {}).get("model")
        shown.append(ShownRun.of(run.result, folder, model if isinstance(model, dict) else {}))
    boards: dict[tuple[int, str], list[Entry]] = {}
    sets = Overview(tuple(shown)).sets
    for number, images in enumerate(sets):
        for row in images.rows:
            entry = Entry(row)
            if entry.auto or entry.autoattack:
                boards.setdefault((number, row.threat), []).append(entry)
            else:
                reason = "neither auto nor AutoAttack has run on this model, these images and this threat"
                left_out += [LeftOut(run.folder, (reason,)) for run in row.runs]
    made = [Board(sets[number], threat, _ranked(entries)) for (number, threat), entries in boards.items()]
    return Leaderboard(tuple(sorted(made, key=lambda board: -len(board.entries))), tuple(left_out))


def attack_name(run: ShownRun) -> str:
    """The name of a run's attack without its options."""
    return run.job.attack.partition("(")[0]


def _run_folders(folders: Iterable[Path]) -> list[Path]:
    found: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"'{folder}' is no folder: name a store, or a folder of stores")
        places = [folder, *(place for place in sorted(folder.iterdir()) if place.is_dir())]
        places += [inner for place in places[1:] if not is_run(place) for inner in sorted(place.iterdir())]
        for place in places:
            if is_run(place):
                found.setdefault(place.resolve(), place)
    if not found:
        raise UsageError("there is no run in these folders: name a store that eval --out wrote, or a folder of stores")
    return [*found.values()]


def _ranked(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    return tuple(
        sorted(entries, key=lambda entry: (-entry.row.worst.accuracy, -entry.row.clean.accuracy, entry.row.model))
    )


def _left(run: ShownRun) -> float:
    return run.robust.accuracy


def _share(accuracy: Accuracy) -> dict[str, float]:
    return {"accuracy": accuracy.accuracy, "low": accuracy.low, "high": accuracy.high}
