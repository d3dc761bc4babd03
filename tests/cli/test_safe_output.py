"""Names from outside on a terminal: printed as they are, without markup and without control characters."""

from __future__ import annotations

import ast
from pathlib import Path

import vitattack.cli

from tests.cli.conftest import Here
from vitattack.core.progress import current_listener

CLI = Path(str(vitattack.cli.__path__[0]))
PRINTS = ("print", "Console", "TextColumn")
SMALL = ("eval", "tiny-vit", "fgsm", "--limit", "8", "--batch-size", "8", "--threads", "1")


def test_a_folder_with_markup_and_escapes_in_its_name(here: Here, tmp_path: Path) -> None:
    for name in ("s/[/x]", "e\x1b]0;owned\x07\x1b[2J"):
        for stored in (False, True):
            done = here(*SMALL, "--out", name)
            assert done.returncode == 0, done.stderr
            assert ("from the store" in done.stderr) is stored
            assert "\x1b" not in done.stdout + done.stderr and "\x07" not in done.stderr
        assert "[/x]" in done.stderr or "owned" in done.stderr


def test_what_a_library_notes_is_printed_in_one_line(capfd: object) -> None:
    from vitattack.cli.progress.download_progress import DownloadScreen

    with DownloadScreen(quiet=False).watched():
        current_listener().note("a\x1b[2Jb\nvitattack: c [/x] https://h/w?sig=SECRET")
        current_listener().warn("d\x9b2Je")
    out = capfd.readouterr().err  # type: ignore[attr-defined]
    assert out == "vitattack: a [2Jb vitattack: c [/x] https://h/w\nvitattack: d 2Je\n"


def test_one_module_alone_writes_to_the_terminal() -> None:
    """Whatever else prints would have to think of markup and control characters itself."""
    found = []
    for path in sorted(CLI.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in PRINTS:
                found.append((path.name, node.func.id))
            if isinstance(node, ast.Attribute) and node.attr in ("echo", "secho"):
                found.append((path.name, node.attr))
    assert not [one for one in found if one[0] != "terminal.py"]
