"""Options that commands share, each with its environment variable VITATTACK_<NAME> and its help."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .suggestions import data_sets

if TYPE_CHECKING:
    from vitattack.models.zoo.file_options import FileOptions

F = TypeVar("F", bound=Callable[..., Any])


# Every variable an option reads, and those read elsewhere.
VARIABLES = {"VITATTACK_DATA_DIR", "VITATTACK_DEBUG", "VITATTACK_HOME"}


def option(name: str, *more: str, **settings: Any) -> Callable[[F], F]:
    variable = "VITATTACK_" + name.lstrip("-").upper().replace("-", "_")
    settings.setdefault("show_default", True)
    VARIABLES.add(variable)
    return click.option(name, *more, envvar=variable, **settings)


def _shard(ctx: click.Context, parameter: click.Parameter, value: str) -> tuple[int, int]:
    number, _, count = value.partition("/")
    if not (number.isdecimal() and count.isdecimal() and int(number) < int(count)):
        raise click.BadParameter(f"'{value}' is not K/N with K below N: write 0/4 for the first of four")
    return int(number), int(count)


def combined(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(command: F) -> F:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def _offline(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    """Set through the environment, the only place where clients of the hub look."""
    if wanted:
        os.environ["VITATTACK_OFFLINE"] = os.environ["HF_HUB_OFFLINE"] = "1"


def _watched(ctx: click.Context, parameter: click.Parameter, quiet: bool) -> bool:
    """Show the progress of downloads, unless the command is quiet."""
    from .progress.download_progress import DownloadScreen

    ctx.with_resource(DownloadScreen(quiet).watched())
    if quiet:
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # where timm calls the hub itself
    return quiet


FORMATS = ("table", "md", "csv", "latex", "json")

data_options = combined(
    option(
        "--data",
        default="cifar10-demo",
        shell_complete=data_sets,
        help="Data set or protocol by name, folder:PATH or npz:PATH, with [rows] if wanted.",
    ),
    option("--limit", type=click.IntRange(1), help="Only the first N images."),
    option("--subset", metavar="random:N:SEED", help="N images drawn with a seed."),
    option("--indices", type=click.Path(dir_okay=False), help="Only the rows listed in this text file."),
    option("--data-dir", type=click.Path(file_okay=False), help="Folder that holds the data sets' files."),
    option(
        "--transform",
        help="For image files: resize224x224, crop224, bicubic256crop224; default: the data set's, else the model's.",
    ),
)
# No environment variable: an option that may run code must be given each time.
code_option = click.option(
    "--model-from",
    metavar="FILE.py:NAME",
    help="Build the model by your own code, a class or function there or in MODULE:NAME; runs it.",
)
unsafe_option = click.option(
    "--unsafe-pickle",
    is_flag=True,
    help="Read a file that could run code: a pickle, TorchScript, .pt2; only if you trust its author.",
)
file_options = combined(
    option("--arch", help="Architecture of a checkpoint file: a timm name or small:NAME."),
    option("--num-classes", type=click.IntRange(1), help="Its number of classes; default: the architecture's own."),
    option("--arch-kwargs", default="{}", help="Its arguments as JSON, such as '{\"num_classes\": 10}'."),
    option("--normalize", help="How the file's model normalises: none, cifar10, imagenet, half or MEAN/STD."),
    option("--weights-key", help="Key under which the file keeps its tensors, such as state_dict."),
    option("--strip-prefix", help="Prefix of every tensor name in the file, such as module."),
    option("--adapter", help="Renames tensors before loading: swin, timm, normaliser or vit-patch."),
    option(
        "--input-size",
        metavar="H[xW]|any",
        help="Size of its images in px, where the model does not state it; any where they differ.",
    ),
    code_option,
    option("--like", metavar="ID", help="Read the file as this zoo entry says, instead of the options above."),
    unsafe_option,
)
compute_options = combined(
    option("--batch-size", type=click.IntRange(1), default=64, help="Images per batch; halved on out-of-memory."),
    option("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps."),
    option("--threads", type=click.IntRange(1, 1024), help="CPU threads; default: the cores this process may use."),
)
store_options = combined(
    option("--out", default="runs", type=click.Path(file_okay=False), help="Where results are stored and resumed."),
    option("--fresh", is_flag=True, help="Delete the stored results of these jobs and start over."),
)
machine_options = combined(
    option("--seed", type=click.IntRange(0), default=0, help="Noise depends only on seed and image."),
    compute_options,
)
jobs_option = option(
    "--jobs",
    type=click.IntRange(1, 1024),
    help="Processes that share the work, and the cores if --threads is not given; default: what is measured to be fastest.",
)
run_options = combined(
    machine_options,
    jobs_option,
    option("--shard", default="0/1", callback=_shard, metavar="K/N", help="Run part K of N; the last one merges."),
    store_options,
)
output_options = combined(
    option("--json", "as_json", is_flag=True, help="One JSON object on stdout and nothing else."),
    option("--format", "form", type=click.Choice(FORMATS), default="table", help="Form of the table."),
    option("--quiet", is_flag=True, callback=_watched, help="No progress."),
    option("--offline", is_flag=True, expose_value=False, callback=_offline, help="Use only what was fetched before."),
    option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error."),
)


def model_options(given: dict[str, Any]) -> FileOptions:
    """The options about a checkpoint file, taken out of a command's arguments."""
    from vitattack.models.zoo.file_options import FileOptions

    try:
        arch_kwargs = json.loads(given.pop("arch_kwargs"))
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"--arch-kwargs is not JSON ({error})") from None
    if not isinstance(arch_kwargs, dict):
        raise click.UsageError("--arch-kwargs is not a JSON object: write '{\"num_classes\": 10}'")
    keys = ("arch", "num_classes", "normalize", "weights_key", "strip_prefix", "adapter", "like", "unsafe_pickle")
    more = ("model_from", "input_size")
    return FileOptions(arch_kwargs=arch_kwargs, **{key: given.pop(key) for key in (*keys, *more)})


def data_text(data: str, limit: int | None, subset: str | None, indices: str | None) -> str:
    """The options that narrow a data set as part of its name."""
    rows = [part for part in (limit and f"limit:{limit}", subset, indices and f"file:{indices}") if part]
    if len(rows) > 1:
        raise click.UsageError("--limit, --subset and --indices exclude each other: give one")
    if rows and data.endswith("]"):
        raise click.UsageError(f"data '{data}' is narrowed already: drop --limit, --subset or --indices")
    return f"{data}[{rows[0]}]" if rows else data
