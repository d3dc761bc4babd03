"""`vitattack train RECIPE [KEY=VALUE ...]`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from vitattack.core.errors import UsageError

from .options import combined, option, output_options
from .suggestions import recipes
from .terminal import write_json


@click.command(
    "train",
    epilog="""\b
Examples:
  vitattack train                                   list the recipes
  vitattack train trades-tiny --data-dir DATA       train, or resume where it stopped
  vitattack train trades epochs=20 "objective=trades(beta=3)" "hooks=ema(0.998),grad_clip(1.0)"
  vitattack train my.yaml --log tensorboard --workers 4
  vitattack train aas-at my.yaml epochs=20          override keys of aas-at with those of my.yaml
  vitattack train pgd-at-tiny --add my-vit          and register the best weights as my-vit
  vitattack train tora-tiny lambda=0.1,0.5,0.9      three trade-offs that share the run of their first phase
  torchrun --nproc-per-node 8 --max-restarts 3 -m vitattack.cli train vit-b2-edm
\b
The same command resumes a run that was killed and ends in the same bits. batch_size counts all processes together.
A recipe is YAML, as in benchmarks/train; `base: NAME` inherits the keys of another one, `then:` holds the keys of a second
phase from the weights of the first (then.epochs=3 changes one), and `values:` are texts that keys name as {lambda}.
""",
)
@click.argument("recipe", required=False, shell_complete=recipes)
@click.argument("changes", nargs=-1, metavar="[FILE.yaml] [KEY=VALUE]...")
@option("--data-dir", type=click.Path(file_okay=False), help="Folder that holds the data sets' files.")
@option("--out", default="runs/train", type=click.Path(file_okay=False), help="Where runs are stored and resumed.")
@option("--init", help="Start from a zoo id, timm:ARCH.TAG or a weights file; the same as init=...")
@option("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps.")
@option("--threads", type=click.IntRange(1, 1024), help="CPU threads; default: the cores this process may use.")
@option("--workers", type=click.IntRange(0, 256), default=1, help="Threads that prepare batches ahead of time.")
@option("--save-every", type=click.IntRange(1), default=1000, help="Steps between checkpoints inside an epoch.")
@option("--keep", type=click.IntRange(1), default=2, help="Number of checkpoints to keep.")
@option("--log", multiple=True, help="Also log to tensorboard, wandb or trackio; may be given several times.")
@option("--keep-going", is_flag=True, help="Warn instead of stopping on collapse or overfitting.")
@option("--fresh", is_flag=True, help="Delete what is stored of this run and start over.")
@option("--plan", "only_plan", is_flag=True, help="Estimate the cost of the run from ten steps, and train nothing.")
@option("--add", "name", metavar="NAME", help="Register the best weights as a model of your own.")
@combined(output_options)
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
    """Train a model by RECIPE, a name in benchmarks/train or a YAML file, with keys overridden by FILE.yaml or KEY=VALUE.

    Every epoch ends with probes (clean, PGD-10, one step, attention gaps, query and key gradients) and a checkpoint.
    Training stops early when the loss is NaN, clean accuracy collapses or one-step training overfits. The folder holds
    best.safetensors and last.safetensors, epochs.csv, epochs.jsonl, steps.jsonl and result.json.
    """
    from vitattack.report.train import courses_table, plan_table, plans_table, recipes_table, run_table
    from vitattack.train.courses import load_courses
    from vitattack.train.session_options import SessionOptions

    from .output import show

    form = "json" if as_json else form
    if recipe is None:
        show(*recipes_table(), form)
        return
    # Checks that need no torch come first, so that a typo is refused at once.
    courses = load_courses(recipe, [*changes, *([f"init={init}"] if init else [])])
    if name is not None and len(courses) > 1:
        raise UsageError(f"--add registers one model, and these are {len(courses)}: give one value")
    options = SessionOptions(**{key: given.pop(key) for key in ("keep", "save_every", "workers", "log", "keep_going")})

    from vitattack.train.export import check_name_is_free, register_best
    from vitattack.train.run_courses import final_folder, plan_courses, train_courses

    from .progress.train_progress import TrainingScreen
    from .signals import catch_sigterm

    data_folder = Path(data_dir) if data_dir else None
    if only_plan:
        with TrainingScreen(quiet) as screen:
            where = {"data_dir": data_folder, "device": given["device"], "threads": given["threads"]}
            plans = plan_courses(courses, reporter=screen, **where)
        show(*(plan_table(*plans[0]) if len(plans) == 1 else plans_table(plans)), form)
        return
    if name is not None:
        check_name_is_free(name, final_folder(courses[0], given["out"]))
    catch_sigterm()
    with TrainingScreen(quiet) as screen:
        trained = train_courses(courses, data_dir=data_folder, options=options, reporter=screen, **given)
    if not trained[0].final.is_main:
        return
    if name is not None:
        register_best(trained[0].final, name)
    table, content = run_table(trained[0].final) if len(trained) == 1 else courses_table(trained)
    if form == "json":
        write_json(content)
    else:
        show(table, content, form)
