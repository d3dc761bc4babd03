"""The two ways a call can fail; the command line turns them into exit codes 2 and 1."""

import pickle
from contextlib import suppress

from vitattack.core.words import on_one_line


class VitattackError(Exception):
    """A failed run: the message is one line that names the cause and the fix, printable whatever it quotes."""

    def __str__(self) -> str:
        return on_one_line(super().__str__())


class UsageError(VitattackError, ValueError):
    """A request that cannot be met as stated: the message is one line that names the cause and the fix."""


class WrongThreat(UsageError):
    """An attack that is not defined for this kind of threat."""


def first_line(error: BaseException) -> str:
    """The first line of another library's error message; empty if it has none."""
    return next(iter(str(error).splitlines()), "")


def text_failure(error: OSError | ValueError) -> str:
    """The reason why a text file could not be read."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return "it is not text" if isinstance(error, UnicodeDecodeError) else "no file can have this name"


def sendable(error: BaseException) -> Exception:
    """The error as another process can raise it: itself, or its words if it cannot be sent."""
    with suppress(Exception):
        again = pickle.loads(pickle.dumps(error))  # noqa: S301  # nosec B301  # our own
        if isinstance(again, Exception) and str(again) == str(error):
            return again
    for kind in (UsageError, VitattackError):
        if isinstance(error, kind):
            return kind(str(error))
    return RuntimeError(f"{type(error).__name__}: {first_line(error)}")
