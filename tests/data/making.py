"""Small files in the layouts of the real sets."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

from PIL import Image


def encoded(colour: tuple[int, int, int], size: tuple[int, int] = (8, 8), form: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size, colour).save(stream, format=form)
    return stream.getvalue()


def put(path: Path, data: bytes | None = None, colour: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded((colour, 0, 0)) if data is None else data)
    return path


def tar(path: Path, members: Iterable[tuple[str, bytes]], mode: str = "w:") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def val(number: int) -> str:
    return f"ILSVRC2012_val_{number:08d}.JPEG"
