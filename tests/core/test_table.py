"""A table whose texts were written by somebody hostile, in each of its forms."""

from __future__ import annotations

import csv
import io

import pytest
from rich.console import Console

from vitattack.core.table import Table

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m"
HOSTILE = [
    f"a{ESCAPE}b",
    "s/[/x]",
    "[bold]x",
    "=cmd|' /C calc'!A0",
    "@SUM(1)",
    "+1+cmd",
    "-2+3+cmd",
    "\t=1+1",
    "<img src=x onerror=alert(1)>",
    "[here](javascript:alert(1))",
    "a\\|b",
    "\\input{/etc/passwd}",
    "$x$ %\u202egnp.exe",
]


def table() -> Table:
    title, note = f"t [/x] {ESCAPE}<script>,=1+1", f"n {ESCAPE}<b>,@x"
    return Table(title, ("m [/b]", f"h{ESCAPE}"), [[text, text] for text in HOSTILE], [note], left=2)


def on_screen(shown: Table) -> str:
    console = Console(file=io.StringIO(), force_terminal=True, width=200, color_system=None)
    console.print(shown.rich())
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize("form", ["rich", "stacked", "markdown", "csv", "latex"])
def test_no_form_moves_the_cursor_or_hides_text(form: str) -> None:
    text = on_screen(table()) if form == "rich" else getattr(table(), form)()
    assert all(character.isprintable() or character == "\n" for character in text), form
    assert "owned" in text and "s/[/x]" in text.replace("{[}", "[")


def test_no_cell_of_a_csv_is_a_formula() -> None:
    rows = list(csv.reader(io.StringIO(table().csv())))
    cells = [cell for row in rows for cell in row]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t"))]
    assert len(rows) == 1 + len(HOSTILE) and {len(row) for row in rows} == {2}
    remarks = table().remarks().splitlines()
    assert len(remarks) == 2 and "".join(remarks).isprintable()
    plain = Table("t", ("a", "b"), [["-0.25", "-"], ["+1e-3", "-inf"]]).csv()
    assert plain.splitlines()[1:3] == ["-0.25,-", "+1e-3,-inf"]


def test_markdown_holds_no_html_and_no_link() -> None:
    text = table().markdown()
    assert "<img" not in text and "<script" not in text and "<b>" not in text and "](" not in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == len(HOSTILE) + 2
    assert "| a\\\\\\|b |" in text
    assert "one<br>two" in Table("t", ("a",), [["one\ntwo"]]).markdown()


def test_latex_holds_no_command_of_the_text() -> None:
    text = table().latex()
    assert "\\input" not in text and "\\textbackslash{}input" in text
    assert "\\$x\\$ \\%" in text


def test_the_last_column_is_cut_at_a_word_and_never_to_nothing() -> None:
    lines = Table("t", ("name", "what it does"), [("a", "one two three four five six"), ("b", "short")], left=2)
    cut = lines.narrowed(5)
    assert cut.rows == [("a", "one two three four …"), ("b", "short")]
    assert lines.narrowed(0) is lines and lines.narrowed(20) is lines
