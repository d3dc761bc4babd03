"""Run a recipe: train it to a folder of weights, or measure a plan of it. The same call resumes, with equal bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.core.files import json_text, write_atomically
from vitattack.core.runtime import numerics
from vitattack.evaluation.setup import Setup
from vitattack.models.architectures.build import build_architecture
from vitattack.models.base import Attackable
from vitattack.models.flops import ShapesOnly
from vitattack.models.zoo.from_file import input_size_of
from vitattack.train.augment.base import augmented
from vitattack.train.data.batch import Batch, Stream, batch_rng, centre_crop
from vitattack.train.data.stand_in_data import StandInData, stand_in_data
from vitattack.train.data.training_data import TrainingData, open_training_data
from vitattack.train.distributed import Processes, join_processes
from vitattack.train.hooks.base import RunState
from vitattack.train.loop.checkpoints import Checkpoints
from vitattack.train.loop.initial_weights import check_init, run_key
from vitattack.train.loop.reporter import Reporter
from vitattack.train.loop.session import Session
from vitattack.train.loop.training_loop import TrainingLoop
from vitattack.train.loop.training_model import build_training_model
from vitattack.train.recipe import Recipe
from vitattack.train.recipe_parts import Parts, build_parts, canonical_recipe
from vitattack.train.run_folder import TrainedRun, clear_outputs, finished_run, folder_of, locked_folder
from vitattack.train.session_options import SessionOptions
from vitattack.train.training_plan import TrainingPlan, measure_plan


def train(
    recipe: Recipe,
    *,
    out: str | Path = "runs/train",
    data: TrainingData | None = None,
    data_dir: str | Path | None = None,
    device: str = "auto",
    threads: int | None = None,
    fresh: bool = False,
    options: SessionOptions = SessionOptions(),
    reporter: Reporter | None = None,
) -> TrainedRun:
    """Train a recipe, or resume its run; `data` replaces the data sets of the recipe and must be the same in every call.

    The folder gets `best.safetensors` (by PGD-10 on the held-out images, or clean accuracy for standard training) and
    `last.safetensors`, `epochs.csv`, `epochs.jsonl`, `steps.jsonl`, `result.json` and the newest checkpoints.
    """
    setup = Setup(out=out, data_dir=data_dir, device=device, threads=threads, fresh=fresh)
    recipe = canonical_recipe(recipe)
    parts = build_parts(recipe)
    processes = join_processes(setup.device)
    pieces = processes.shard.world * recipe.accumulate
    if recipe.batch_size % pieces:
        raise UsageError(
            f"batch_size {recipe.batch_size} does not divide into {processes.shard.world} processes times "
            f"{recipe.accumulate} pieces: change batch_size or accumulate"
        )
    key = run_key(recipe)
    folder = folder_of(recipe, out, key)
    fresh = setup.fresh and not processes.restarted  # or one dead worker would cost the whole run
    with locked_folder(folder, owner=processes.is_main) as confirm, numerics(setup.cores), _deterministic():
        checkpoints = Checkpoints(folder / "checkpoints", options.keep, confirm)
        finished = None if fresh else finished_run(folder)
        if finished is not None:
            return replace(finished, is_main=processes.is_main)
        reporter = reporter or Reporter()
        reporter.stage("reading the data", 0, 1)
        data = data or open_training_data(recipe, setup.data_folder)
        reporter.stage("reading the data", 1, 1)
        reporter.stage("building the model", 0, 1)
        loop = _assemble(recipe, parts, data.train, processes, options)
        reporter.stage("building the model", 1, 1)
        data = data._replace(x=_held_out_at(data.x, loop.run.plain.input_size))
        processes.wait()
        if processes.is_main:
            if fresh:  # only now that recipe and data have turned out to be valid
                clear_outputs(folder, checkpoints)
            write_atomically(folder / "recipe.json", json_text(recipe.json()))
        processes.wait()
        session = Session(recipe, key, loop, data, checkpoints, folder, options, reporter)
        session.resume()
        if processes.is_main and (folder / "result.json").is_file():
            session.reporter.warn(f"{folder / 'result.json'} or the weights beside it are damaged: writing them again")
        loop.observer = session
        loop.fit()
        session.finish()
        processes.wait()
    trained = finished_run(folder)
    assert trained is not None
    return replace(trained, is_main=processes.is_main)


def plan_training(
    recipe: Recipe,
    *,
    data: TrainingData | None = None,
    data_dir: str | Path | None = None,
    device: str = "auto",
    threads: int | None = None,
    reporter: Reporter | None = None,
) -> TrainingPlan:
    """Measure the cost of a recipe on this machine by a few steps that are thrown away; nothing is stored or fetched.

    Random images and weights of the same shapes stand in for those of the recipe.
    """
    setup = Setup(data_dir=data_dir, device=device, threads=threads)
    recipe = canonical_recipe(recipe)
    parts = build_parts(recipe)
    processes = join_processes(setup.device)
    with numerics(setup.cores), _deterministic():
        if recipe.init is not None:
            check_init(recipe.init)
            recipe = replace(recipe, init=None)  # weights cost the same whatever their values
        if data is not None:
            stand_in = StandInData(data.train, counted=True, assumed=())
        else:
            stand_in = stand_in_data(recipe, lambda: _input_size(recipe), setup.data_folder)
        stage = (reporter or Reporter()).stage
        stage("building the model", 0, 1)
        loop = _assemble(recipe, parts, stand_in.train, processes, SessionOptions())
        stage("building the model", 1, 1)
        timing = partial(stage, "timing steps")
        return measure_plan(loop, counted=stand_in.counted, assumed=stand_in.assumed, progress=timing)


def _input_size(recipe: Recipe) -> int:
    """The side of the images that a recipe's model takes; no memory is spent on its weights."""
    with ShapesOnly():
        return input_size_of(build_architecture(recipe.arch, recipe.arch_kwargs), recipe.arch_kwargs)


def _assemble(
    recipe: Recipe, parts: Parts, stream: Stream, processes: Processes, options: SessionOptions
) -> TrainingLoop:
    """The loop at its beginning: model, hooks and optimiser, checked against the data."""
    plain = build_training_model(recipe, stream.num_classes, processes.device)
    _check_images(recipe, parts, stream, plain.input_size)
    view: Attackable = plain
    for hook in parts.hooks:
        view = hook.wrap(view)
    view.to(processes.device)
    run = RunState(
        victim=view,
        plain=plain,
        optimiser=parts.optimiser(view),
        eps=parts.ball.eps,
        seed=recipe.seed,
        epochs=recipe.epochs,
        steps=stream.steps,
        processes=processes,
    )
    for hook in parts.hooks:
        hook.start(run)
    return TrainingLoop(run, parts, stream, recipe.accumulate, options.workers, options.log_every)


def _check_images(recipe: Recipe, parts: Parts, stream: Stream, input_size: int) -> None:
    """Augment two images and check that the model takes them and that their labels have its classes."""
    sample = Batch(*(part[:2] for part in stream.batch(0, 0)))
    x, y = augmented(sample, parts.augmentations, batch_rng(recipe.seed, 0, 0, len(sample.x)))
    if tuple(x.shape[1:]) != (3, input_size, input_size):
        raise UsageError(
            f"'{recipe.data}' gives images of {tuple(x.shape[1:])}, {recipe.arch} takes {input_size} px: "
            "change arch, arch_kwargs (img_size) or augment"
        )
    if y.dim() == 2 and y.shape[1] != stream.num_classes:
        raise UsageError(
            f"augment: labels are mixed among {y.shape[1]} classes, '{recipe.data}' has {stream.num_classes}: "
            f"write mixup(classes={stream.num_classes})"
        )


def _held_out_at(x: Tensor, px: int) -> Tensor:
    """The held-out images at the model's input size, to which augmentation crops the training images."""
    return centre_crop(x, px) if len(x) else x


@contextmanager
def _deterministic() -> Iterator[None]:
    """Select deterministic kernels and keep torch's global generator untouched."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        with torch.random.fork_rng():
            yield
    finally:
        torch.backends.cudnn.deterministic = before
