"""`vitattack`: finds the command, and turns errors into one line and an exit code."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from importlib.metadata import version
from typing import NoReturn

import click

from vitattack.core.errors import UsageError, VitattackError, first_line

from .signals import Terminated
from .terminal import buffer_output, say, write

# A command's module is imported when it is called, so that --help loads nothing heavy.
COMMANDS = {
    "eval": "Attack a model and print clean and robust accuracy with intervals.",
    "check": "Check whether a model is as robust as claimed, and whether the attack could tell.",
    "curve": "Print robust accuracy against the budget from one run of minimum-norm attacks.",
    "compare": "Compare models, attacks or stores on the same images, with paired tests.",
    "verify": "Judge adversarial examples made elsewhere, and merge them into a stored worst case.",
    "runs": "List, show, export, verify, merge or delete what a store holds.",
    "bench": "Run a YAML file of models, attacks and threats, or estimate its cost.",
    "transfer": "Craft on some models, judge on others, and print transfer matrices.",
    "diagnose-softmax": "Report per block whether the attention softmax saturates or underflows.",
    "analyze": "Repeat the papers' analyses: strength of attacks, layers, corruptions, figures.",
    "train": "Train a model by a recipe, or resume its training.",
    "report": "Write one HTML page about stored runs: leaderboard, comparison, figures.",
    "leaderboard": "Check run folders and make static pages that rank their models.",
    "plot": "Draw a figure of stored runs for a paper: pdf, svg or png.",
    "models": "List the models of the zoo, show one, fetch, check or add one.",
    "attacks": "List the attacks, or show one with its options.",
    "data": "List the data sets, or show one.",
    "completion": "Install completion of names and options for bash, zsh or fish.",
}


class Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f".{name.replace('-', '_')}", __package__)
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from vitattack.core.registry import did_you_mean

            raise UsageError(did_you_mean("command", args[0], COMMANDS))
        return super().resolve_command(ctx, args)


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        write(f"vitattack {version('vitattack')}")
        ctx.exit()


@click.group(
    cls=Lazy,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="""\b
Examples:
  vitattack eval                               the embedded model on the embedded images
  vitattack eval tiny-vit pgd gama --limit 200
  vitattack eval timm:vit_small_patch16_224.augreg_in21k_ft_in1k pgd --data folder:imagenet/val --threat linf:4/255
  vitattack attacks info gama
""",
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
def cli() -> None:
    """Robustness evaluation and attack benchmarks for Vision Transformers."""


def _check_environment() -> None:
    """Refuse misspelt VITATTACK_ variables, which would otherwise be ignored silently."""
    given = sorted(name for name in os.environ if name.startswith("VITATTACK_"))
    if not given:
        return
    from vitattack.core.registry import did_you_mean

    from .options import VARIABLES

    for name in COMMANDS:
        importlib.import_module(f".{name.replace('-', '_')}", __package__)
    for name in given:
        if name not in VARIABLES:
            raise UsageError(did_you_mean("environment variable", name, VARIABLES) + " (or unset it)")


def _fail(message: str, code: int) -> NoReturn:
    say(f"vitattack: {message}")
    sys.exit(code)


def _forget_output() -> None:
    """Let what cannot be printed go nowhere, or Python would fail once more on its way out."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    debug = "--debug" in sys.argv or os.environ.get("VITATTACK_DEBUG", "0").lower() not in ("", "0", "false", "no")
    buffer_output()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read with torch: threads that spin starve on busy cores
    try:
        _check_environment()
        sys.exit(cli.main(standalone_mode=False, prog_name="vitattack"))
    except click.exceptions.NoArgsIsHelpError as error:
        write(error.format_message())
        sys.exit(2)
    except click.ClickException as error:
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "vitattack"
        _fail(f"{error.format_message()} (see {where} --help)", 2)
    except UsageError as error:
        if debug:
            raise
        _fail(str(error), 2)
    except VitattackError as error:
        if debug:
            raise
        _fail(str(error), 1)
    except Terminated:
        _fail("terminated: finished batches are stored; run the same command to resume", 128 + signal.SIGTERM)
    except (KeyboardInterrupt, click.Abort):
        _fail("interrupted: finished batches are stored; run the same command to resume", 128 + signal.SIGINT)
    except BrokenPipeError:  # the reader closed the pipe, as head does
        _forget_output()
        sys.exit(1)
    except OSError as error:
        if debug:
            raise
        _forget_output()
        _fail(f"cannot write the output ({error.strerror}): print it elsewhere; finished batches are stored", 1)
    except Exception as error:
        if debug:
            raise
        reason = first_line(error)
        _fail(f"the run failed ({type(error).__name__}: {reason}); --debug shows where. Finished batches are stored", 1)
