"""The next command to run, as doubts name it: for the same model, threat and images, in the words in which they were given."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Given:
    """How the user gave a model and its images: by name with further words of the command line, or as Python objects."""

    model: str | None = None  # None for an object
    data_named: bool = True
    words: tuple[str, ...] = ()


_given: ContextVar[Given | None] = ContextVar("given", default=None)


@contextmanager
def given_as(given: Given) -> Iterator[None]:
    """Name commands for a model that was given like this."""
    token = _given.set(given)
    try:
        yield
    finally:
        _given.reset(token)


def next_eval(attack: str, model: str, threat: str, data: str) -> str:
    """The command that runs another attack on what a job with these texts attacks."""
    given = _given.get() or Given(model)
    if given.model is None or not given.data_named:
        of = "model" if given.model is None else f'"{given.model}"'
        images = f'"{data}"' if given.data_named else "data"
        return f'vitattack.evaluate({of}, "{attack}", threat="{threat}", data={images})'
    return f'{_command("eval", given.model, given.words, attack)} --threat {threat} --data "{data}"'


def next_diagnosis(model: str) -> str:
    """The command that diagnoses the attention of a job's model."""
    given = _given.get() or Given(model)
    if given.model is None:
        return "vitattack.diagnose(model)"
    return _command("diagnose-softmax", given.model, given.words)


def _command(name: str, model: str, words: Sequence[str], attack: str = "") -> str:
    quoted = [f'"{attack}"'] if attack else []
    return " ".join(["vitattack", name, shlex.quote(model), *quoted, *map(shlex.quote, words)])
