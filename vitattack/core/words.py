"""Texts from outside made safe for each place they go to: terminals, tables, records, file names."""

from __future__ import annotations

import hashlib
import html
import re
from pathlib import Path

_SECRETS = re.compile(r"(\w+://)(?:[^\s/?#@]*@)?([^\s?#'\"<>]*)(?:[?#][^\s'\"<>]*)?")


def without_secrets(text: str) -> str:
    """A text whose web addresses lost what may be secret: user, password, query and fragment."""
    return _SECRETS.sub(r"\1\2", text)


def printable(text: str, length: int = 100) -> str:
    """One line without control characters, cut to `length`."""
    words = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return words if len(words) <= length else words[: length - 3] + "..."


LONGEST_LINE = 1000


def on_one_line(text: str) -> str:
    """A text without control characters and line breaks; a long one loses its middle, since messages end with the fix."""
    line = text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE // 2]} ... {line[10 - LONGEST_LINE // 2 :]}"


def on_terminal(text: str) -> str:
    """A text that cannot move the cursor, colour what follows or reverse its direction; lines stay lines."""
    return "".join(character if character.isprintable() or character == "\n" else " " for character in text)


def in_markdown(text: str) -> str:
    """A text that Markdown shows as it is: no HTML, no link to follow, no new cell."""
    for character, escaped in {"\\": "\\\\", "|": "\\|", "<": "&lt;", "](": "]\\(", "\n": "<br>"}.items():
        text = text.replace(character, escaped)
    return "".join(character if character.isprintable() else " " for character in text)


def in_html(text: str) -> str:
    """A text that a browser shows as it is: no element, no attribute."""
    return html.escape(on_terminal(text), quote=True)


def in_csv(text: str) -> str:
    """A cell that spreadsheets take for text unless it is a number: formulas begin with = + - or @."""
    cell = on_terminal(text)
    if not cell.lstrip().startswith(("=", "+", "-", "@")) or cell == "-":
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


_TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def in_latex(text: str) -> str:
    """A text that LaTeX sets as it is: no command, no mathematics."""
    return "".join(_TEX.get(character, character) for character in on_terminal(text))


def names_a_file(text: str | Path) -> bool:
    """Whether a file of this name exists; False as well for text that no file can be called."""
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def safe_file_name(name: str) -> str:
    """A single file name for any text: it cannot leave its folder, and no two texts share one."""
    if re.fullmatch(r"[a-z0-9][a-z0-9_.-]{0,79}", name):  # unchanged, also where file names ignore case
        return name
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip(".-")[:80]
    return f"{readable}+{hashlib.sha256(name.encode()).hexdigest()[:8]}"
