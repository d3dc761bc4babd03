"""Names of classes for readers: of CIFAR-10, or from a file with one a line."""

from __future__ import annotations

from pathlib import Path

from vitattack.core.errors import UsageError
from vitattack.core.files import no_pipe

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
LARGEST_FILE = 4 << 20  # bytes


def known_names(data: str) -> tuple[str, ...]:
    """The names of the classes of a data set by its text; empty where they are not known."""
    return CIFAR10 if data.partition("[")[0].strip() in ("cifar10", "cifar10-demo") else ()


def names_in(path: Path) -> tuple[str, ...]:
    """The names in a file, in the order of the classes."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise UsageError(
                f"'{path}' is larger than {LARGEST_FILE >> 20} MB: give a text file with a class name per line"
            )
        return tuple(no_pipe(path).read_text(encoding="utf-8").splitlines())
    except OSError as error:
        raise UsageError(f"cannot read class names from '{path}' ({error.strerror}): give a text file") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"'{path}' is not UTF-8 text: give a text file with a class name per line") from error
