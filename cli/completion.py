"""`vitattack completion [SHELL]`: completion of commands, options and names in bash, zsh and fish."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from vitattack.core.errors import UsageError
from vitattack.core.files import replace_content

from .terminal import write

VARIABLE = "_VITATTACK_COMPLETE"
# Where a shell reads its settings, if it does not look for completions in a folder of its own.
SETTINGS = {"bash": ".bashrc", "zsh": ".zshrc", "fish": None}

# A zsh that was never set up knows of no completions.
COMPINIT = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\n"


@click.command(
    "completion",
    epilog="""\b
Examples:
  vitattack completion                        install it for the shell that runs now, by $SHELL
  vitattack completion zsh                    install it for zsh
  vitattack completion bash --print           only print the script
\b
For bash and zsh the script lies in ~/.local/share/vitattack, and one line of ~/.bashrc or ~/.zshrc reads it; fish finds
its own in ~/.config/fish/completions. bash needs to be 4.4 or newer.
""",
)
@click.argument("shell", type=click.Choice([*SETTINGS]), required=False)
@click.option("--print", "only_print", is_flag=True, help="Print the script and change no file.")
def command(shell: str | None, only_print: bool) -> None:
    """Let the shell complete commands, options and the names of models, attacks, data sets, recipes and runs."""
    shell = shell or _running_shell()
    script = _script(shell)
    if only_print:
        write(script, newline=False)
        return
    for path in _install(shell, script):
        write(f"{path}")
    write("complete: open a new shell, and press Tab after `vitattack eval `")


def _running_shell() -> str:
    name = Path(os.environ.get("SHELL", "")).name
    if name not in SETTINGS:
        raise UsageError("$SHELL is none of bash, zsh and fish: name the shell, as in vitattack completion bash")
    return name


def _script(shell: str) -> str:
    kind = get_completion_class(shell)
    assert kind is not None  # the shells of SETTINGS are those that click knows
    from .main import cli

    completion = kind(cli, {}, "vitattack", VARIABLE)
    text = completion.source_template % completion.source_vars()  # source() asks bash for its version first
    return f"{COMPINIT}{text}\n" if shell == "zsh" else f"{text}\n"


def _install(shell: str, script: str) -> list[Path]:
    """Write the script where the shell finds it, and return the files that now say so."""
    home = Path.home()
    settings = SETTINGS[shell]
    try:
        if settings is None:
            own = (
                Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "fish" / "completions" / "vitattack.fish"
            )
            _write(own, script)
            return [own]
        data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share") / "vitattack" / f"completion.{shell}"
        _write(data, script)
        read_by = Path(os.environ.get("ZDOTDIR") or home) / settings if shell == "zsh" else home / settings
        line = f"source {shlex.quote(str(data))}  # completion of vitattack"
        before = read_by.read_text() if read_by.exists() else ""
        if line not in before.splitlines():
            with read_by.open("a") as file:
                file.write(("" if before.endswith("\n") or not before else "\n") + line + "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"completion cannot be installed ({error}): use --print and place the script yourself"
        ) from error
    return [data, read_by]


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_content(path, text.encode())
