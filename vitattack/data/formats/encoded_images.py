"""Encoded images in folders and in tars that are read in place; nothing is extracted."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from vitattack.core.errors import UsageError

MAX_BYTES = 100_000_000
IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".tif", ".tiff"}


class EncodedImage(Protocol):
    """One encoded image of a data set; `name` is its path there, with slashes, and its text is for messages."""

    @property
    def name(self) -> str: ...

    def read(self) -> bytes: ...

    def __str__(self) -> str: ...


def _check_size(size: int, what: str) -> None:
    if size > MAX_BYTES:
        raise UsageError(f"{what} has {size:,} bytes, too many for one image: replace or remove it")


@dataclass(frozen=True, slots=True)
class ImageOnDisk:
    """An image file below a folder."""

    root: Path
    name: str

    def read(self) -> bytes:
        path = self.root / self.name
        try:
            _check_size(path.stat().st_size, str(path))
            return path.read_bytes()
        except OSError as error:
            raise UsageError(f"cannot read '{path}' ({error.strerror}): check the data folder") from error

    def __str__(self) -> str:
        return str(self.root / self.name)


@dataclass(frozen=True, slots=True)
class ImageInTar:
    """An image, or another file, inside an uncompressed tar, by the bytes it occupies."""

    path: Path
    name: str
    offset: int
    size: int

    def read(self) -> bytes:
        _check_size(self.size, str(self))
        with self.path.open("rb") as stream:
            stream.seek(self.offset)
            data = stream.read(self.size)
        if len(data) < self.size:
            raise UsageError(f"'{self.path}' ends inside {self.name}: the download is cut off, fetch it again")
        return data

    def __str__(self) -> str:
        return f"{self.name} of {self.path}"


def is_image(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES and not is_hidden(name)


def _parts(name: str) -> list[str]:
    """The key to sort by: folder by folder, since as plain text cat-2/a.png would come before cat/a.png."""
    return name.split("/")


def is_hidden(name: str) -> bool:
    """Whether a path is hidden: thumbnails, notebook checkpoints and shadow files are no part of a data set."""
    return any(part.startswith((".", "__")) for part in PurePosixPath(name).parts)


def images_in_folder(root: Path) -> list[ImageOnDisk]:
    """All image files below a folder, sorted by name. A link may point inside the folder, never out of it."""
    if not root.is_dir():
        raise UsageError(f"folder '{root}' does not exist: give the folder that holds the images")
    return [ImageOnDisk(root, name) for name in sorted(_walk(root, root.resolve(), ""), key=_parts)]


def _walk(folder: Path, root: Path, prefix: str) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                name = prefix + entry.name
                if is_hidden(entry.name):
                    continue
                if entry.is_symlink():
                    _check_link(Path(entry.path), root)
                if entry.is_dir(follow_symlinks=False):
                    yield from _walk(Path(entry.path), root, f"{name}/")
                elif is_image(name) and entry.is_file():
                    yield name
    except OSError as error:
        raise UsageError(f"cannot list '{folder}' ({error.strerror}): check the data folder") from error


def _check_link(path: Path, root: Path) -> None:
    target = Path(os.path.realpath(path))  # Path.resolve raises where links go round in circles
    if not target.is_relative_to(root):
        raise UsageError(f"'{path}' is a link out of the data folder: copy what it points to, or give that folder")
    if not target.exists():
        raise UsageError(f"'{path}' is a link to nothing: remove it, or complete the data folder")
    if target.is_dir():
        raise UsageError(f"'{path}' is a link to a folder: its images would count twice, remove it")


def images_in_tar(path: Path) -> list[ImageInTar]:
    """All images of an uncompressed tar, sorted by name."""
    images = files_in_tar(path, is_image)
    if not images:
        raise UsageError(f"'{path}' holds no image: give the tar of the images themselves")
    return [images[name] for name in sorted(images, key=_parts)]


def files_in_tar(path: Path, wanted: Callable[[str], bool]) -> dict[str, ImageInTar]:
    """Those files of an uncompressed tar whose names are wanted, by name."""
    found: dict[str, ImageInTar] = {}
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
                if member.isdir() or not wanted(str(name)):
                    continue
                if not member.isreg() or member.issparse():
                    raise UsageError(f"'{path}' holds {ascii(member.name)[:60]}, which is no plain file: do not use it")
                if str(name) in found:
                    raise UsageError(f"'{path}' holds {ascii(member.name)[:60]} twice: fetch it again")
                found[str(name)] = ImageInTar(path, str(name), member.offset_data, member.size)
    except UsageError:
        raise
    except Exception as error:  # a broken tar fails in whatever field is broken
        raise UsageError(f"'{path}' is not a readable tar file ({type(error).__name__}): fetch it again") from error
    return found


def images_in(path: Path) -> list[ImageOnDisk] | list[ImageInTar]:
    """All images of a folder or an uncompressed tar, sorted by name."""
    return images_in_tar(path) if path.is_file() else images_in_folder(path)
