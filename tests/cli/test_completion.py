"""Completion is installed by one command, and a real shell completes commands, options and names with it."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

Environment = dict[str, str]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder with `vitattack` on its own path and nothing set up."""
    command = tmp_path / "bin" / "vitattack"
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable}\nfrom vitattack.cli.main import main\nmain()\n")
    command.chmod(0o755)
    (tmp_path / ".bashrc").write_text("alias ll='ls -l'")  # no newline at its end
    (tmp_path / ".zshrc").touch()
    return tmp_path


def environment(home: Path, shell: str) -> Environment:
    kept = {key: os.environ[key] for key in ("LANG", "PYTHONPATH") if key in os.environ}
    path = f"{home / 'bin'}:{os.environ['PATH']}"
    return {**kept, "HOME": str(home), "PATH": path, "SHELL": f"/bin/{shell}", "PS1": "> ", "TERM": "dumb"}


def install(home: Path, shell: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["vitattack", "completion", *words]
    env = environment(home, shell)
    return subprocess.run(command, env=env, cwd=home, capture_output=True, text=True, check=False)


def typed(home: Path, command: list[str], line: str, expected: str, seconds: float = 20) -> str:
    """What a terminal shows after a line, which ends in Tab, is typed into a shell; until the expected text appears."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(home)
        os.execvpe(command[0], command, environment(home, command[0]))
    seen, sent, end = "", False, time.monotonic() + seconds
    try:
        while time.monotonic() < end and expected not in seen:
            if select.select([terminal], [], [], 0.2)[0]:
                seen += os.read(terminal, 65536).decode(errors="replace")
            elif not sent and seen:
                sent = os.write(terminal, line.encode()) > 0
    finally:
        os.close(terminal)
        os.kill(child, 9)
        os.waitpid(child, 0)
    return seen


def test_bash_completes_what_is_typed(home: Path) -> None:
    for _ in range(2):
        assert install(home, "bash").returncode == 0
    settings = (home / ".bashrc").read_text().splitlines()
    assert settings[0] == "alias ll='ls -l'" and len(settings) == 2  # added once, on a line of its own
    assert "tiny-cnn-standard" in typed(home, ["bash", "-i"], "vitattack eval tiny-cn\t", "tiny-cnn-standard")


def test_bash_is_offered_what_a_word_can_be(home: Path) -> None:
    assert install(home, "bash").returncode == 0

    def offered(*words: str) -> list[str]:
        code = f"COMP_CWORD={len(words) - 1}; _vitattack_completion vitattack; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        script = f"source ~/.bashrc 2>/dev/null; COMP_WORDS=({' '.join(map(repr, words))}); {code}"
        done = subprocess.run(
            ["bash", "-c", script], env=environment(home, "bash"), cwd=home, capture_output=True, text=True
        )
        assert not done.stderr
        return done.stdout.split()

    assert offered("vitattack", "tra") == ["transfer", "train"]
    assert offered("vitattack", "eval", "tiny-vit", "apgd_") == ["apgd_ce", "apgd_dlr", "apgd_t"]
    assert offered("vitattack", "eval", "--thre") == ["--threat", "--threads"]
    assert offered("vitattack", "eval", "--data", "cifar10-d") == ["cifar10-demo"]
    assert "trades-tiny" in offered("vitattack", "train", "trades")
    (home / "runs").mkdir()
    assert offered("vitattack", "runs", "show", "la") == ["last"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish_completes(home: Path) -> None:
    assert install(home, "fish").returncode == 0
    command = ["fish", "-c", "complete -C 'vitattack eval tiny-cn'"]
    done = subprocess.run(command, env=environment(home, "fish"), cwd=home, capture_output=True, text=True)
    assert done.stdout.split() == ["tiny-cnn-standard"], done.stderr


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_completes_what_is_typed(home: Path) -> None:
    assert install(home, "zsh").returncode == 0
    assert "tiny-cnn-standard" in typed(home, ["zsh", "-i"], "vitattack eval tiny-cn\t", "tiny-cnn-standard")


def test_a_script_is_printed_without_touching_files_and_other_shells_are_refused(home: Path) -> None:
    printed = install(home, "bash", "zsh", "--print")
    assert "compdef _vitattack_completion vitattack" in printed.stdout
    assert sorted(path.name for path in home.iterdir()) == [".bashrc", ".zshrc", "bin"]
    refused = install(home, "tcsh")
    assert refused.returncode == 2 and "name the shell" in refused.stderr and len(refused.stderr.splitlines()) == 1
