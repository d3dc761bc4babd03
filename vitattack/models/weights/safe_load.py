"""Safe reading of checkpoint files: inspected before they are parsed, parsed without running code in them."""

from __future__ import annotations

import argparse
import io
import json
import pickle
import pickletools
import re
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from vitattack.core import progress
from vitattack.core.errors import UsageError, first_line
from vitattack.core.words import printable
from vitattack.models.weights.file_kind import looks_like

FIX = "fetch it again, or check that it is the file you mean"
ALLOWED = (argparse.Namespace,)  # training scripts store their arguments beside the weights
LARGEST_HEADER = 100_000_000  # of a safetensors file
LARGEST_PICKLE = 64 << 20  # the pickle of a checkpoint holds names and shapes; tensors are stored beside it
SHARED = 4  # times the file size; tensors may share storage, but not without limit
DANGEROUS = re.compile(
    r"(os|posix|nt|subprocess|sys|shutil|socket|runpy|importlib|pty|ctypes|webbrowser|code)\b"
    r"|(builtins|__builtin__) (eval|exec|compile|open|getattr|__import__|breakpoint)\b"
)


class CouldRunCode(UsageError):
    """A pickle that names more than tensors and was not unpickled; `hostile` if only an attacker would name it."""

    def __init__(self, message: str, hostile: bool) -> None:
        super().__init__(message)
        self.hostile = hostile


def read_checkpoint(path: Path, *, name: str | None = None, unsafe: bool = False) -> dict[Any, Any]:
    """Read the content of a checkpoint file; `unsafe` also unpickles, with a warning, files that could run code."""
    name = printable(name or path.name)
    with path.open("rb") as stream:
        kind = looks_like(stream.read(4096))
    if kind == "safetensors" or name.endswith(".safetensors"):
        return _safetensors(path, name, kind)
    if kind not in ("zip", "pickle"):
        raise UsageError(f"'{name}' is not a readable checkpoint (it is {kind}): {FIX}")
    if kind == "zip":
        _check_zip(path, name)
    try:
        content = _unpickled(path, name, kind, unsafe=False)
    except CouldRunCode:
        if not unsafe:
            raise
        named = printable(_words(foreign_names(path, kind)), 300) or "things that hide their names"
        progress.current_listener().warn(
            f"--unsafe-pickle: '{name}' is unpickled without restrictions and could run code: {named}"
        )
        content = _unpickled(path, name, kind, unsafe=True)
    if not isinstance(content, dict):
        raise UsageError(f"'{name}' holds a {type(content).__name__}, not named tensors: save model.state_dict()")
    _check_sizes(content, path, name)
    return content


def _safetensors(path: Path, name: str, kind: str) -> dict[Any, Any]:
    try:
        if kind != "safetensors":
            raise ValueError(f"it is {'a torch file' if kind in ('zip', 'pickle') else kind}")
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > path.stat().st_size - 8:
                raise ValueError("its header is longer than the file")
            if length <= LARGEST_HEADER:  # the library refuses larger ones
                json.loads(stream.read(length), object_pairs_hook=_each_once)
        return dict(load_file(path))
    except (SafetensorError, OSError, ValueError, RuntimeError, OverflowError, RecursionError) as error:
        reason = printable(str(error) or type(error).__name__)
        raise UsageError(f"'{name}' is not a readable safetensors file ({reason}): {FIX}") from error


def _each_once(pairs: list[tuple[str, Any]]) -> None:
    """Refuse names that stand twice: readers differ in which one they take."""
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise ValueError(f"'{name}' stands twice in its header")
        seen.add(name)


def _check_zip(path: Path, name: str) -> None:
    """Refuse archives that torch did not write: it never compresses, so nothing grows on reading."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise UsageError(f"'{name}' is not a readable checkpoint ({printable(str(error))}): {FIX}") from error
    if not any(m.filename.endswith("/data.pkl") for m in members):
        raise UsageError(f"'{name}' is a zip archive without a checkpoint in it: unpack it and name the file inside")
    if any(m.filename.endswith("/constants.pkl") for m in members):
        raise UsageError(f"'{name}' is a TorchScript program, not weights: save model.state_dict()")
    size = path.stat().st_size
    unpacked = sum(m.file_size for m in members)
    if unpacked > size or any(m.compress_type != zipfile.ZIP_STORED for m in members):
        raise UsageError(
            f"'{name}' is compressed, {size:,} bytes that would grow to {unpacked:,}, and torch never compresses: "
            "it is refused"
        )
    if any(m.filename.endswith("/data.pkl") and m.file_size > LARGEST_PICKLE for m in members):
        raise UsageError(_too_long(name))


def _too_long(name: str) -> str:
    return f"'{name}' holds a pickle of more than {LARGEST_PICKLE >> 20} MB: save model.state_dict()"


class _TooLong(Exception):
    """The pickles of a file are too long."""


class _LegacyFile:
    """A torch file of before 1.6, pickles with tensors behind them, which lets torch read so much of a pickle only.

    Pickles are read by `read` and `readline`, tensors by `readinto`, as there is no file number to read past this object.
    """

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream, self._left = stream, LARGEST_PICKLE
        self.readinto, self.tell, self.seek = stream.readinto, stream.tell, stream.seek

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= self._left:
            raise _TooLong
        self._left -= size
        return self._stream.read(size)

    def readline(self) -> bytes:
        line = self._stream.readline(self._left + 1)
        if len(line) > self._left:
            raise _TooLong
        self._left -= len(line)
        return line


def _unpickled(path: Path, name: str, kind: str, unsafe: bool) -> Any:
    try:
        with warnings.catch_warnings(), _allow_only(ALLOWED):
            warnings.simplefilter("ignore")  # torch warns about pickle protocols before it refuses them
            # Mapped, a record cannot be read beyond its end, whatever the pickle says about its length.
            if kind == "zip":
                return torch.load(path, map_location="cpu", weights_only=not unsafe, mmap=True)  # nosec B614
            with path.open("rb") as stream:
                return torch.load(cast(Any, _LegacyFile(stream)), map_location="cpu", weights_only=not unsafe)  # nosec B614
    except _TooLong:
        raise UsageError(_too_long(name)) from None
    except pickle.UnpicklingError as error:
        raise _refusal(path, name, kind) from error
    except Exception as error:  # torch's parser fails on broken files in a dozen ways
        reason = printable(first_line(error) or type(error).__name__)
        raise UsageError(f"'{name}' is not a readable checkpoint ({reason}): {FIX}") from error


@contextmanager
def _allow_only(classes: tuple[type, ...]) -> Iterator[None]:
    """Restrict the classes that torch lets a checkpoint name to these, leaving out what other libraries added."""
    before = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(list(classes))
    try:
        yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


def _refusal(path: Path, name: str, kind: str) -> CouldRunCode:
    names = foreign_names(path, kind)
    calls = [text for text in names if DANGEROUS.match(text)]
    if calls:
        what = printable(_words(calls))
        return CouldRunCode(f"'{name}' would run code when unpickled ({what}): it is refused, do not load it", True)
    what = f" ({printable(_words(names))})" if names else ""
    return CouldRunCode(
        f"'{name}' holds Python objects besides tensors{what}, which could run code: re-save model.state_dict() alone, "
        "best as safetensors; --unsafe-pickle loads it if you trust whoever made it",
        False,
    )


def _words(named: list[str]) -> str:
    return ", ".join(text.replace(" ", ".") for text in named)


def foreign_names(path: Path, kind: str) -> list[str]:
    """Return the objects from outside torch and the allowed classes that a pickle names, as "module name"; run nothing."""
    allowed = {f"{c.__module__} {c.__qualname__}" for c in ALLOWED} | {"collections OrderedDict"}
    try:
        if kind == "zip":
            with zipfile.ZipFile(path) as archive:
                record = next(m for m in archive.infolist() if m.filename.endswith("/data.pkl"))
                names = _global_names(io.BytesIO(archive.read(record)))
        else:
            with path.open("rb") as stream:
                names = [text for _ in range(4) for text in _global_names(stream)]  # magic, version, system, content
    except Exception:  # noqa: BLE001  # nothing can be read off a broken archive
        names = []
    return sorted({t for t in names if t not in allowed and not t.startswith(("torch ", "torch.", "_codecs "))})


def _global_names(stream: BinaryIO) -> list[str]:
    names: list[str] = []
    texts: list[str] = []
    try:
        for opcode, argument, _ in pickletools.genops(stream):
            if opcode.name in ("GLOBAL", "INST"):
                names.append(str(argument))
            elif opcode.name == "STACK_GLOBAL":
                names.append(" ".join(texts[-2:]))
            elif isinstance(argument, str):
                texts.append(argument)
    except Exception:  # noqa: BLE001  # names read before the break count
        return names
    return names


def _check_sizes(content: dict[Any, Any], path: Path, name: str) -> None:
    """Refuse tensors that claim more values than they store, as strides of zero allow, before anything copies them."""
    total, largest = 0, SHARED * path.stat().st_size
    for key, tensor in _tensors(content, depth=3):
        try:
            needed, held = tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()
        except (RuntimeError, NotImplementedError):  # sparse and other special forms are refused by their layout
            continue
        total += needed
        if needed > held or total > largest:
            raise UsageError(f"'{name}' claims more values than it holds, such as in {printable(str(key))}: {FIX}")


def _tensors(content: dict[Any, Any], depth: int) -> Iterator[tuple[Any, Tensor]]:
    for key, value in content.items():
        if isinstance(value, Tensor):
            yield key, value
        elif isinstance(value, dict) and depth > 1:
            yield from _tensors(value, depth - 1)
