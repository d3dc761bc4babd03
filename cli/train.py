"""`vitattack train RECIPE [KEY=VALUE ...]`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from .options import option, output_options, together


@click.command(
    "train",
    epilog="""\b
Examples:
  vitattack train                                   the recipes there are
  vitattack train trades-tiny --data-dir DATA       go, or go on where it stopped
  vitattack train trades epochs=20 "objective=trades(beta=3)" "hooks=ema(0.998),grad_clip(1.0)"
  vitattack train my.yaml --log tensorboard --workers 4
  vitattack train aas-at my.yaml epochs=20          the keys of my.yaml over those of aas-at
  vitattack train pgd-at-tiny --add my-vit          and register the best weights as my-vit
  torchrun --nproc-per-node 8 --max-restarts 3 -m vitattack.cli train vit-b2-edm
\b
A run that was killed goes on with the same command and ends in the same bits. batch_size is that of all processes
together. A recipe is YAML: see benchmarks/train; `base: NAME` takes the keys of another one.
""",
)
@click.argument("recipe", required=False)
@click.argument("changes", nargs=-1, metavar="[FILE.yaml] [KEY=VALUE]...")
@option("--data-dir", type=click.Path(file_okay=False), help="Folder that holds the data sets' files.")
@option("--out", default="runs/train", type=click.Path(file_okay=False), help="Where runs are stored and resumed.")
@option("--init", help="Begin from a zoo id, timm:ARCH.TAG or a weights file; the same as init=...")
@option("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps.")
@option("--threads", type=click.IntRange(1, 1024), help="CPU threads; default: the cores this process may use.")
@option("--workers", type=click.IntRange(0, 256), default=1, help="Threads that make batches ahead of time.")
@option("--save-every", type=click.IntRange(1), default=1000, help="Steps between checkpoints inside an epoch.")
@option("--keep", type=click.IntRange(1), default=2, help="How many checkpoints stay.")
@option("--log", multiple=True, help="Also log to tensorboard, wandb or trackio; may be given several times.")
@option("--keep-going", is_flag=True, help="Only warn where training would be stopped (collapse, overfitting).")
@option("--fresh", is_flag=True, help="Forget what is stored of this run and start over.")
@option("--plan", "only_plan", is_flag=True, help="Say what the run would take, from ten steps, and train nothing.")
@option("--add", "name", metavar="NAME", help="Register the best weights as a model of your own.")
@together(output_options)
def command(
    recipe: str | None,
    changes: tuple[str, ...],
    data_dir: str | None,
    init: str | None,
    name: str | None,
    only_plan: bool,
    as_json: bool,
    form: str,
    quiet: bool,
    **given: Any,
) -> None:
    """Train a model by RECIPE, a name of benchmarks/train or a YAML file, with changes: the keys of FILE.yaml, KEY=VALUE.

    Every epoch ends with probes (clean, PGD-10, one step, attention gaps, query and key gradients) and a checkpoint.
    Training stops early when the loss is NaN, clean accuracy collapses or one-step training overfits. The folder holds
    best.safetensors and last.safetensors, epochs.csv, epochs.jsonl, steps.jsonl and result.json.
    """
    from vitattack.report.train import priced, recipes, summary
    from vitattack.train import recipe as recipe_texts

    from .output import show

    form = "json" if as_json else form
    if recipe is None:
        table, content = recipes()
        show(table, content, form)
        return
    from vitattack.train.export import check_free, register
    from vitattack.train.loop.session import Options
    from vitattack.train.train import folder_of, planned, train

    from .signals import catch_sigterm
    from .training import TrainingScreen

    asked = [*changes, *([f"init={init}"] if init else [])]
    wanted = recipe_texts.load(recipe, asked)
    if only_plan:
        found = planned(wanted, data_dir=data_dir, device=given["device"], threads=given["threads"])
        show(*priced(wanted, found), form)
        return
    if name is not None:
        check_free(name, folder_of(wanted, given["out"]))
    options = Options(**{key: given.pop(key) for key in ("keep", "save_every", "workers", "log", "keep_going")})
    catch_sigterm()
    with TrainingScreen(quiet) as screen:
        done = train(
            wanted,
            data_dir=Path(data_dir) if data_dir else None,
            options=options,
            reporter=screen,
            **given,
        )
    if not done.first:
        return
    if name is not None:
        register(done, name)
    table, content = summary(done)
    if form == "json":
        click.echo(json.dumps(content, indent=2))
    else:
        show(table, content, form)
