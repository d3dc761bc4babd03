"""Blocks of code of a page of the documentation, and the command lines in them.

A block is fenced or indented by four spaces. Below a comment such as `<!-- not run: needs a GPU -->` it is read and not run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^```(\w*)\s*$")
MARK = re.compile(r"<!-- not run: (.+?) -->")
PROGRAMS = ("vitattack", "python", "make", "pip", "torchrun")


@dataclass(frozen=True)
class Block:
    """A block of code: its language, its lines, where it begins, and why it is not run."""

    page: Path
    line: int
    language: str
    text: str
    not_run: str | None

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        """The words of every command line of our own program; comments are left out, and a line goes on behind a backslash."""
        lines = self.text.replace("\\\n", " ").splitlines()
        words = [_words(line.removeprefix("$ ")) for line in lines if line.startswith(("vitattack ", "$ vitattack "))]
        return tuple(tuple(each[1:]) for each in words)


def _words(line: str) -> list[str]:
    words = shlex.split(line, comments=True)
    for end in (">", "|", "||", "&&"):
        words = words[: words.index(end)] if end in words else words
    return words


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page in their order."""
    lines = [*page.read_text().splitlines(), ""]
    number, reason = 0, None
    while number < len(lines):
        line = lines[number]
        if match := FENCE.match(line):
            end = lines.index("```", number + 1)
            yield Block(page, number + 1, match[1], "\n".join(lines[number + 1 : end]), reason)
            number, reason = end + 1, None
        elif line.startswith("    ") and not lines[number - 1].strip():
            end = next(at for at in range(number, len(lines)) if not lines[at].startswith("    "))
            text = "\n".join(each[4:] for each in lines[number:end])
            yield Block(page, number + 1, "bash" if text.lstrip("$ ").startswith(PROGRAMS) else "", text, reason)
            number, reason = end, None
        else:
            found = MARK.search(line)
            reason = found[1] if found else reason if not line.strip() else None
            number += 1
