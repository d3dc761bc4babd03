"""Where encoded images lie: in a folder, in a tar that is read in place, or in a parquet file. Nothing is extracted."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from vitattack.core.errors import UsageError
from vitattack.data.formats.images import MAX_BYTES

IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".tif", ".tiff"}


class Blob(Protocol):
    """One encoded image; `name` is its path inside the data set, with slashes."""

    @property
    def name(self) -> str: ...

    def read(self) -> bytes: ...

    def __str__(self) -> str: ...


def _bounded(size: int, what: str) -> None:
    if size > MAX_BYTES:
        raise UsageError(f"{what} has {size:,} bytes, too many for one image: replace or remove it")


@dataclass(frozen=True, slots=True)
class OnDisk:
    root: Path
    name: str

    def read(self) -> bytes:
        path = self.root / self.name
        try:
            _bounded(path.stat().st_size, str(path))
            return path.read_bytes()
        except OSError as error:
            raise UsageError(f"cannot read '{path}' ({error.strerror}): check the data folder") from error

    def __str__(self) -> str:
        return str(self.root / self.name)


@dataclass(frozen=True, slots=True)
class InTar:
    path: Path
    name: str
    offset: int
    size: int

    def read(self) -> bytes:
        _bounded(self.size, str(self))
        with self.path.open("rb") as stream:
            stream.seek(self.offset)
            data = stream.read(self.size)
        if len(data) < self.size:
            raise UsageError(f"'{self.path}' ends inside {self.name}: the download is cut off, fetch it again")
        return data

    def __str__(self) -> str:
        return f"{self.name} of {self.path}"


def _is_image(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES and not hidden(name)


def _parts(name: str) -> list[str]:
    """Folder by folder: as words, cat-2/a.png would come before cat/a.png."""
    return name.split("/")


def hidden(name: str) -> bool:
    """Thumbnails, checkpoints of notebooks and the shadow files of other systems are no part of a data set."""
    return any(part.startswith((".", "__")) for part in PurePosixPath(name).parts)


def in_folder(root: Path) -> list[OnDisk]:
    """Every image file below a folder, sorted by name. A link may point inside the folder, never out of it."""
    if not root.is_dir():
        raise UsageError(f"folder '{root}' does not exist: give the folder that holds the images")
    return [OnDisk(root, name) for name in sorted(_walk(root, root.resolve(), ""), key=_parts)]


def _walk(folder: Path, home: Path, prefix: str) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                name = prefix + entry.name
                if hidden(entry.name):
                    continue
                if entry.is_symlink():
                    _check_link(Path(entry.path), home)
                if entry.is_dir(follow_symlinks=False):
                    yield from _walk(Path(entry.path), home, f"{name}/")
                elif _is_image(name) and entry.is_file():
                    yield name
    except OSError as error:
        raise UsageError(f"cannot list '{folder}' ({error.strerror}): check the data folder") from error


def _check_link(path: Path, home: Path) -> None:
    target = Path(os.path.realpath(path))  # Path.resolve raises where links go round in circles
    if not target.is_relative_to(home):
        raise UsageError(f"'{path}' is a link out of the data folder: copy what it points to, or give that folder")
    if not target.exists():
        raise UsageError(f"'{path}' is a link to nothing: remove it, or complete the data folder")
    if target.is_dir():
        raise UsageError(f"'{path}' is a link to a folder: its images would count twice, remove it")


def in_tar(path: Path) -> list[InTar]:
    """Every image of an uncompressed tar, sorted by name."""
    found: dict[str, InTar] = {}
    try:
        with path.open("rb") as stream:
            magic = stream.read(6)
        if magic.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ")):
            raise UsageError(
                f"'{path}' is compressed, images in it cannot be reached one by one: unpack it to a folder"
            )
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                name = PurePosixPath(member.name)
                if name.is_absolute() or ".." in name.parts or "\\" in member.name:
                    raise UsageError(
                        f"'{path}' holds {ascii(member.name)[:60]}, a name that leads out of it: do not use it"
                    )
                if member.isdir() or not _is_image(str(name)):
                    continue
                if not member.isreg() or member.issparse():
                    raise UsageError(f"'{path}' holds {ascii(member.name)[:60]}, which is no plain file: do not use it")
                if str(name) in found:
                    raise UsageError(f"'{path}' holds {ascii(member.name)[:60]} twice: fetch it again")
                found[str(name)] = InTar(path, str(name), member.offset_data, member.size)
    except UsageError:
        raise
    except Exception as error:  # a broken tar fails in whatever field is broken
        raise UsageError(f"'{path}' is not a readable tar file ({type(error).__name__}): fetch it again") from error
    if not found:
        raise UsageError(f"'{path}' holds no image: is it another file, or a tar of tars?")
    return [found[name] for name in sorted(found, key=_parts)]


def in_place(path: Path) -> list[OnDisk] | list[InTar]:
    return in_tar(path) if path.is_file() else in_folder(path)
