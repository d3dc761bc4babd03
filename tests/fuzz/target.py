"""A parser under fuzzing: its inputs, its call, and what it may spend."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.guard import attempt, unwatched


@dataclass(frozen=True)
class Target:
    """A parser with a strategy; inputs are literals, so that a failure prints as a runnable line."""

    name: str
    inputs: Callable[[], st.SearchStrategy[Any]]
    parse: Callable[[Any], object]
    seconds: float = 5.0  # of CPU per input
    megabytes: int = 300  # of growth of the resident size per input

    def run(self, value: Any) -> str:
        """The outcome of one input; raises `Bad` if it is neither parsed nor refused as it should be."""
        return attempt(lambda: self.parse(value), seconds=self.seconds, megabytes=self.megabytes)


@cache
def scratch() -> Path:
    """A folder of this process for files under test."""
    return Path(tempfile.mkdtemp(prefix="vitattack-fuzz-"))


def written(name: str, content: bytes | str) -> Path:
    """A file under test."""
    path = scratch() / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode(errors="surrogatepass"))
    return path


def emptied(name: str) -> Path:
    """An empty folder under test."""
    path = scratch() / name
    with unwatched():
        shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    return path
