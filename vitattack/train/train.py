"""`train`: a recipe to a folder with its weights. Stopped anywhere, the same call goes on and ends in the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.core.files import json_text, read_json, try_lock, write_atomically
from vitattack.core.runtime import numerics, usable_cores
from vitattack.train.data.augment import augmented
from vitattack.train.data.batch import Batch, batch_rng, middle
from vitattack.train.data.streams import Data, open_data
from vitattack.train.hooks.hooks import Run
from vitattack.train.loop.checkpoint import Checkpoints
from vitattack.train.loop.distributed import Team, team
from vitattack.train.loop.logs import read_rows
from vitattack.train.loop.loop import Loop
from vitattack.train.loop.model import learner, run_key
from vitattack.train.loop.session import Keeper, Options, Reporter, Row
from vitattack.train.parts import Parts, canonical, parts
from vitattack.train.plan import Plan, plan
from vitattack.train.recipe import Recipe


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
    key = run_key(recipe)
    folder = folder_of(recipe, out, key)
    fresh = fresh and not together.again  # or a worker that died would cost the whole run
    with _locked(folder, together), numerics(threads or usable_cores()), _own_numerics():
        checkpoints = Checkpoints(folder / "checkpoints", options.keep)
        done = None if fresh else finished(folder)
        if done is not None:
            return replace(done, first=together.first)
        found = data or open_data(recipe, None if data_dir is None else Path(data_dir))
        loop = _assemble(recipe, made, found, together, options)
        found = found._replace(x=_middle_of(found, loop.run.plain.input_size))
        together.wait()
        if together.first:
            if fresh:  # nothing is wrong with the recipe or the data: only now
                _forget(folder, checkpoints)
            write_atomically(folder / "recipe.json", json_text(recipe.json()))
        together.wait()
        keeper = Keeper(recipe, key, loop, found, checkpoints, folder, options, reporter)
        keeper.resume()
        loop.observer = keeper
        loop.fit()
        keeper.finish()
        together.wait()
    ended = finished(folder)
    assert ended is not None
    return replace(ended, first=together.first)


def folder_of(recipe: Recipe, out: str | Path, key: str | None = None) -> Path:
    """Where the run of a recipe is stored; its key is worked out unless it is known."""
    return Path(out) / f"{recipe.name}-{(key or run_key(canonical(recipe)))[:8]}"


def planned(
    recipe: Recipe,
    *,
    data: Data | None = None,
    data_dir: str | Path | None = None,
    device: str = "auto",
    threads: int | None = None,
) -> Plan:
    """What a recipe will take here; a few steps are made and thrown away, nothing is stored."""
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
    few = Batch(*(part[:2] for part in stream.batch(0, 0)))
    x, y = augmented(few, made.augment, batch_rng(recipe.seed, 0, 0, len(few.x)))
    if tuple(x.shape[1:]) != (3, plain.input_size, plain.input_size):
        raise UsageError(
            f"'{recipe.data}' gives images of {tuple(x.shape[1:])}, {recipe.arch} takes {plain.input_size} px: "
            "change arch, arch_kwargs (img_size) or augment"
        )
    if y.dim() == 2 and y.shape[1] != stream.num_classes:
        raise UsageError(
            f"augment: labels are mixed among {y.shape[1]} classes, '{recipe.data}' has {stream.num_classes}: "
            f"write mixup(classes={stream.num_classes})"
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


def _middle_of(data: Data, px: int) -> Tensor:
    """The held-out images at the size of the model, where the others are cut to it by augmentation."""
    return middle(data.x, px) if len(data.x) else data.x


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
        if together.first and not try_lock(stream):
            raise UsageError(f"another process is training in {folder}: wait for it, or give another --out")
        yield


def _forget(folder: Path, checkpoints: Checkpoints) -> None:
    checkpoints.clear()
    for name in ("result.json", "steps.jsonl", "epochs.jsonl", "epochs.csv", "best.safetensors", "last.safetensors"):
        with suppress(FileNotFoundError):
            (folder / name).unlink()
