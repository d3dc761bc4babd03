"""`train`: a recipe to a folder with its weights. Stopped anywhere, the same call goes on and ends in the same bits."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vitattack.errors import UsageError
from vitattack.evaluation.api import usable_cores
from vitattack.evaluation.provenance import machine
from vitattack.evaluation.run import numerics
from vitattack.evaluation.store import dump, read_json, write_atomically
from vitattack.home import file_sha256
from vitattack.models.scaling import adapters_of
from vitattack.train.checkpoint import Checkpoints, write_bytes
from vitattack.train.hooks import Run
from vitattack.train.learner import exported, learner
from vitattack.train.logs import Log, check_trackers, read_rows
from vitattack.train.loop import Loop, Observer
from vitattack.train.objectives import Standard
from vitattack.train.parts import Parts, canonical, parts
from vitattack.train.plan import Plan, plan
from vitattack.train.probes import AttentionProbe, Probe, Stopped, Watch
from vitattack.train.recipe import Recipe
from vitattack.train.streams import Data, open_data
from vitattack.train.team import Team, team

Row = dict[str, float]


class Reporter:
    """What a run tells while it goes on; the default tells nothing."""

    def begin(self, recipe: Recipe, folder: Path, step: int, total: int) -> None:
        """Steps made before, in another session, and all there are."""

    def step(self, row: Row) -> None: ...

    def epoch(self, row: Row, best: bool) -> None: ...

    def warn(self, text: str) -> None: ...


@dataclass(frozen=True)
class Options:
    """What changes how a run goes, never what comes out of it."""

    keep: int = 2  # checkpoints
    save_every: int = 1000  # steps, besides the end of every epoch
    workers: int = 1
    log: tuple[str, ...] = ()
    log_every: int = 10  # steps
    keep_going: bool = False  # warn where a run would be stopped early

    def __post_init__(self) -> None:
        if min(self.keep, self.save_every, self.log_every) < 1 or self.workers < 0:
            raise UsageError(
                "a run keeps at least 1 checkpoint, saves and logs every 1 or more steps, and has 0 or more workers"
            )
        check_trackers(self.log)


@dataclass(frozen=True)
class Trained:
    """A finished run: its folder, the rows of its epochs, and what `result.json` says."""

    folder: Path
    epochs: tuple[Row, ...]
    result: dict[str, Any]
    first: bool = True  # whether this process is the one that speaks for all

    @property
    def best(self) -> Path:
        return self.folder / "best.safetensors"

    @property
    def last(self) -> Path:
        return self.folder / "last.safetensors"


def train(
    recipe: Recipe,
    *,
    out: str | Path = "runs/train",
    data: Data | None = None,
    data_dir: str | Path | None = None,
    device: str = "auto",
    threads: int | None = None,
    fresh: bool = False,
    options: Options = Options(),
    reporter: Reporter | None = None,
) -> Trained:
    """Trains a recipe, or goes on with it; `data` in place of what the recipe names must be the same in every call.

    The folder holds `best.safetensors` (by PGD-10 on the held-out images, or clean accuracy for a standard objective)
    and `last.safetensors`, `epochs.csv`, `epochs.jsonl`, `steps.jsonl`, `result.json` and the newest checkpoints.
    """
    reporter = reporter or Reporter()
    recipe = canonical(recipe)
    made = parts(recipe)
    together = team(device)
    pieces = together.shard.world * recipe.accumulate
    if recipe.batch_size % pieces:
        raise UsageError(
            f"batch_size {recipe.batch_size} does not divide into {together.shard.world} processes times "
            f"{recipe.accumulate} pieces: change batch_size or accumulate"
        )
    folder = Path(out) / f"{recipe.name}-{recipe.key[:8]}"
    with _locked(folder, together), numerics(threads or usable_cores()), _own_numerics():
        checkpoints = Checkpoints(folder / "checkpoints", options.keep)
        if together.first:
            if fresh:
                _forget(folder, checkpoints)
            write_atomically(folder / "recipe.json", dump(recipe.json()))
        together.wait()
        done = finished(folder)
        if done is not None:
            return replace(done, first=together.first)
        found = data or open_data(recipe, None if data_dir is None else Path(data_dir))
        loop = _assemble(recipe, made, found, together, options)
        keeper = _Keeper(recipe, loop, found, checkpoints, folder, options, reporter)
        keeper.resume()
        loop.observer = keeper
        loop.fit()
        keeper.finish()
        together.wait()
    ended = finished(folder)
    assert ended is not None
    return replace(ended, first=together.first)


def planned(
    recipe: Recipe,
    *,
    data: Data | None = None,
    data_dir: str | Path | None = None,
    device: str = "auto",
    threads: int | None = None,
) -> Plan:
    """What a recipe will take here; its first steps are made and thrown away, nothing is stored."""
    recipe = canonical(recipe)
    made = parts(recipe)
    together = team(device)
    with numerics(threads or usable_cores()), _own_numerics():
        found = data or open_data(recipe, None if data_dir is None else Path(data_dir))
        return plan(_assemble(recipe, made, found, together, Options()))


def finished(folder: Path) -> Trained | None:
    """A run that has ended, from its folder alone."""
    result = read_json(folder / "result.json")
    if result is None or not (folder / "last.safetensors").is_file():
        return None
    return Trained(folder, tuple(read_rows(folder / "epochs.jsonl")), result)


def _assemble(recipe: Recipe, made: Parts, data: Data, together: Team, options: Options) -> Loop:
    stream = data.train
    plain = learner(recipe, stream.num_classes, together.device)
    x, _ = stream.batch(0, 0)
    if tuple(x.shape[1:]) != (3, plain.input_size, plain.input_size):
        raise UsageError(
            f"'{recipe.data}' has images of {tuple(x.shape[1:])}, {recipe.arch} takes {plain.input_size} px: "
            "change arch, arch_kwargs (img_size) or augment"
        )
    view: torch.nn.Module = plain
    for hook in made.hooks:
        view = hook.wrap(view)
    view.to(together.device)
    run = Run(
        victim=view,
        plain=plain,
        optimiser=made.optimiser(view),
        eps=made.ball.eps,
        seed=recipe.seed,
        epochs=recipe.epochs,
        steps=stream.steps,
        team=together,
    )
    for hook in made.hooks:
        hook.start(run)
    return Loop(run, made, stream, recipe.accumulate, options.workers, options.log_every)


class _Keeper(Observer):
    """Stores, logs, probes and warns; `first` alone writes."""

    def __init__(
        self,
        recipe: Recipe,
        loop: Loop,
        data: Data,
        checkpoints: Checkpoints,
        folder: Path,
        options: Options,
        reporter: Reporter,
    ) -> None:
        self.recipe, self.loop, self.folder, self.options, self.reporter = recipe, loop, folder, options, reporter
        self.checkpoints, self.digest = checkpoints, data.train.digest()
        self.attention = AttentionProbe(data.x, data.y)
        self.probing = Probe(data.x, data.y, loop.parts.ball, recipe.probe)
        self.watch = Watch(data.train.num_classes)
        self.by = "clean" if isinstance(loop.parts.objective, Standard) else "robust"
        self.best: Row | None = None
        self.seconds, self._since = 0.0, time.monotonic()
        self.team = loop.run.team
        self.log: Log | None = None

    def resume(self) -> None:
        """From the newest checkpoint, if there is one."""
        stored = self.checkpoints.newest()
        run = self.loop.run
        if stored is not None:
            path, state = stored
            if state["recipe"] != self.recipe.key or state["data"] != self.digest:
                what = "data" if state["recipe"] == self.recipe.key else "recipe"
                raise UsageError(f"{path} was made with another {what}: give another --out, or start over with --fresh")
            self.loop.load(state["loop"])
            self.watch.load_state_dict(state["watch"])
            self.best, self.seconds = state["best"], state["seconds"]
        if self.team.first:
            self.log = Log(self.folder, run.step, self.options.log, self.recipe.json())
            self.reporter.begin(self.recipe, self.folder, run.step, run.epochs * run.steps)

    def step(self, row: Row) -> None:
        if self.log is not None:
            self.log.step(row)
            self.reporter.step(row)

    def due(self) -> bool:
        return self.loop.run.step % self.options.save_every == 0

    def save(self, state: dict[str, Any]) -> None:
        if self.team.first:
            self.seconds, self._since = self._seconds(), time.monotonic()
            content = {
                "recipe": self.recipe.key,
                "data": self.digest,
                "loop": state,
                "watch": self.watch.state_dict(),
                "best": self.best,
                "seconds": self.seconds,
            }
            self.checkpoints.save(self.loop.run.step, content)
        self.team.wait()

    def probe(self, row: Row) -> Row:
        view = self.loop.exported
        numbers = self.probing.look(view, self.team)
        return numbers | (self.attention.look(self.loop.plain()) if self.team.first else {})

    def epoch(self, row: Row, state: Callable[[], dict[str, Any]]) -> None:
        reason = self.watch.check(row)
        better = self.best is None or self._rank(row) > self._rank(self.best)
        if self.log is not None:
            self.log.epoch(row)
            self.reporter.epoch(row, better)
        if reason is not None:
            if not self.options.keep_going:
                kept = f"the best weights so far are {self.folder / 'best.safetensors'}; " if self.best else ""
                raise Stopped(f"stopped after epoch {row['epoch']}: {reason} ({kept}--keep-going goes on regardless)")
            self.reporter.warn(reason)
        if better:
            self.best = row
            self._export("best")
        self.save(state())

    def finish(self) -> None:
        """The last weights, and the best ones where no epoch was run."""
        self._export("last")
        if self.best is None:
            self._export("best")
        if self.log is None:
            return
        self.log.close()
        weights = {
            name: {"sha256": file_sha256(path), "size": path.stat().st_size}
            for name in ("best", "last")
            if (path := self.folder / f"{name}.safetensors").is_file()
        }
        rows = self.log.epochs()
        result = {
            "schema": 1,
            "recipe": self.recipe.json(),
            "chosen_by": f"{self.by} accuracy on {len(self.probing.x)} held-out images",
            "best": self.best,
            "last": rows[-1] if rows else None,
            "weights": weights,
            "num_classes": self.loop.run.plain.num_classes,
            "adapter": next(iter(adapters_of(self.loop.plain().model)), None),
            "steps": self.loop.run.step,
            "parameters": sum(p.numel() for p in self.loop.run.plain.parameters()),
            "processes": self.team.shard.world,
            "hours": round(self._seconds() / 3600, 4),
            "provenance": {"threads": torch.get_num_threads(), **machine(self.team.device)},
        }
        write_atomically(self.folder / "result.json", dump(result))

    def _rank(self, row: Row) -> tuple[float, float]:
        return row.get(self.by, row.get("clean", -row["loss"])), row.get("clean", -row["loss"])

    def _seconds(self) -> float:
        return self.seconds + time.monotonic() - self._since

    def _export(self, name: str) -> None:
        if self.team.first:
            about = {"recipe": self.recipe.json(), "step": self.loop.run.step}
            weights = exported(self.loop.plain().model, self.recipe.export == "fp16", about)
            write_bytes(self.folder / f"{name}.safetensors", weights)


@contextmanager
def _own_numerics() -> Iterator[None]:
    """Kernels that give equal bits for equal inputs, and torch's generator as it was before."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        with torch.random.fork_rng():
            yield
    finally:
        torch.backends.cudnn.deterministic = before


@contextmanager
def _locked(folder: Path, together: Team) -> Iterator[None]:
    """One run at a time in a folder; the lock of a killed one is free again."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = (folder / ".lock").open("w")
    except OSError as error:
        raise UsageError(f"cannot write {folder} ({error.strerror}): give another folder with --out") from error
    with stream:
        if together.first:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(
                    f"another process is training in {folder}: wait for it, or give another --out"
                ) from None
        yield


def _forget(folder: Path, checkpoints: Checkpoints) -> None:
    checkpoints.clear()
    for name in ("result.json", "steps.jsonl", "epochs.jsonl", "epochs.csv", "best.safetensors", "last.safetensors"):
        with suppress(FileNotFoundError):
            (folder / name).unlink()
