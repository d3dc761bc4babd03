"""Fuzzed data files: npz, npy, parquet, images of all formats, tars, folders, MATLAB lists, lists of classes."""

from __future__ import annotations

import io
import os
import struct
import tarfile
import zipfile
import zlib
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from PIL import Image

from tests.fuzz.guard import expect
from tests.fuzz.mutations import ODD_WORDS, edited_bytes, edited_texts
from tests.fuzz.target import Target, emptied, scratch, written
from vitattack.core.errors import UsageError
from vitattack.data.dataset import load_data
from vitattack.data.formats.arrays import npy, npz_source
from vitattack.data.formats.decoding import decode_rgb
from vitattack.data.formats.encoded_images import images_in_folder, images_in_tar
from vitattack.data.formats.layouts import caltech101, numbered_folders, synset_folders
from vitattack.data.formats.matfile import read_numbers
from vitattack.data.formats.row_sources import ParquetSource
from vitattack.data.labels.imagenet import classes_from_synsets
from vitattack.data.transform import make_transform

X, Y = np.arange(4 * 8 * 8 * 3, dtype=np.uint8).reshape(4, 8, 8, 3), np.array([0, 1, 2, 1])


# Arrays.


def _npz(compressed: bool, **arrays: Any) -> bytes:
    stream = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(stream, **arrays)
    return stream.getvalue()


def _npy(array: Any, version: tuple[int, int] | None = None) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version)
    return stream.getvalue()


@cache
def _npz_seeds() -> list[bytes]:
    floats = X.astype(np.float32) / 255
    return [
        *(_npz(compressed, image=X, label=Y) for compressed in (False, True)),
        _npz(False, x=floats, y=Y.astype(np.int32)),
        _npz(False, images=X.transpose(0, 3, 1, 2), labels=Y.astype(np.uint8)),
        _npz(False, image=X, label=Y.astype(object)),
        _npz(True, image=X[:0], label=Y[:0]),
        _npz(False, image=np.asfortranarray(X), label=Y.astype(np.uint64) - 3),
    ]


@st.composite
def npz_files(draw: st.DrawFn) -> bytes:
    """Archives with edited bytes, and whole archives of arrays with edited headers."""
    if draw(st.booleans()):
        return draw(edited_bytes(_npz_seeds()))
    stream = io.BytesIO()
    names = st.sampled_from(
        ("image", "label", "x", "y", "image.npy", "label.npy", "images.npy", "labels.npy", "a\n", "\x1b")
    )
    method = draw(st.sampled_from((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name in draw(st.lists(names, unique=True, max_size=3)):
            archive.writestr(name, draw(npy_files()))
    return stream.getvalue()


@st.composite
def npy_files(draw: st.DrawFn) -> bytes:
    """Arrays with edited bytes, or with any header in front of some bytes."""
    arrays = [X, Y, X.astype(np.float64), Y.astype(np.uint8), np.float32(3), X[:0]]
    if draw(st.booleans()):
        return draw(edited_bytes([*map(_npy, arrays), _npy(X, (2, 0)), _npy(Y, (3, 0))], most=3))
    shapes = (
        "(4, 8, 8, 3)",
        "(4,)",
        "()",
        "(0, 3)",
        "(-1,)",
        "(2**40, 8, 8, 3)",
        "(1e3,)",
        "(True,)",
        "4",
        "(4, 0, 8, 3)",
    )
    types = "'|u1' '<f4' '<i8' '|O' '<U2' '>f8' [('a','<i4')] '<M8[s]' '|V0' 3 'x' '(2,)<f4'".split()
    shape, kind = draw(st.sampled_from(shapes)), draw(st.sampled_from(types))
    text = draw(edited_texts([f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}\n"], most=1))
    header = text.encode("latin1", "replace")
    body = draw(st.sampled_from((X.tobytes(), Y.tobytes(), b"", b"\x00" * 100)))
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", min(len(header), 65535)) + header + body


def _read(source: Any) -> None:
    """Read some rows of an opened source, its labels and its digest."""
    expect(len(source) >= 0, "no length")
    if len(source):
        rows = sorted({0, len(source) // 2, len(source) - 1})
        x, y = source.read(rows)
        expect(x.dtype.is_floating_point and x.shape[0] == len(y) == len(rows), f"{x.shape} and {y.shape}")
        expect(list(source.labels(rows)) == y.tolist(), "labels without images are others than with them")
        source.digest(rows)


def _npz_file(data: bytes) -> None:
    path = written("a.npz", data)
    _read(npz_source(path))
    load_data(f"npz:{path}[:2]").read([0])


def _npy_file(data: bytes) -> None:
    array = npy(written("a.npy", data))
    if array.ndim == 1 and len(array) and array.dtype.kind in "iu":  # as labels are
        array[0], array.extent(), array.whole()


# Parquet.


def _parquet(images: list[Any], labels: Any, **how: Any) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table({"image": images, "label": labels}), stream, **how)
    return stream.getvalue()


@cache
def _parquet_seeds() -> list[bytes]:
    cells = [{"bytes": data, "path": f"{k}.png"} for k, data in enumerate(_image_seeds()[:4])]
    return [
        _parquet(cells, [0, 1, 2, 3]),
        _parquet(cells, [0, 1, 2, 3], compression="zstd", row_group_size=2),
        _parquet(cells, [0, 1, None, 3], compression="none", use_dictionary=False),
        _parquet([c["bytes"] for c in cells], [0, 1, 2, 3], compression="gzip"),
        _parquet(cells, ["a", "b", "c", "d"]),
        _parquet([{"bytes": None, "path": None}] * 4, pa.array([2**63, 1, 2, 3], pa.uint64())),
        _parquet([{"bytes": "text", "path": "x"}] * 4, [0.5, 1, 2, 3]),
        _parquet([], []),
    ]


def _parquet_file(data: bytes) -> None:
    source = ParquetSource([written("a.parquet", data)], "image", "label", 10)
    try:
        names = source.names_and_labels()
        expect(len(names) == len(source), "names of other rows")
    except UsageError:
        pass
    _read(source)


# Images.


def _picture(mode: str = "RGB", size: tuple[int, int] = (12, 9)) -> Image.Image:
    ramp = (np.arange(size[0] * size[1] * 3) * 7 % 256).astype(np.uint8).reshape(size[1], size[0], 3)
    return Image.fromarray(ramp).convert(mode)


def _encoded(form: str, mode: str = "RGB", **how: Any) -> bytes:
    stream = io.BytesIO()
    _picture(mode).save(stream, format=form, **how)
    return stream.getvalue()


@cache
def _image_seeds() -> list[bytes]:
    frames = [_picture().rotate(10 * k) for k in range(3)]
    exif = Image.Exif()
    exif[274] = 6
    return [
        *(_encoded("PNG", mode) for mode in ("RGB", "L", "P", "RGBA", "1", "LA")),
        *(_encoded("JPEG", mode) for mode in ("RGB", "L", "CMYK")),
        *(_encoded("JPEG", progressive=True, quality=30), _encoded("JPEG", exif=exif.tobytes())),
        *(_encoded("WEBP"), _encoded("WEBP", lossless=True), _encoded("WEBP", save_all=True, append_images=frames)),
        *(_encoded("BMP", mode) for mode in ("RGB", "L", "P", "1")),
        *(_encoded("PPM", mode) for mode in ("RGB", "L", "1")),
        *(_encoded("TIFF", compression=kind) for kind in (None, "tiff_lzw", "tiff_deflate", "packbits", "jpeg")),
        *(_encoded("TIFF", "I"), _encoded("TIFF", "F"), _encoded("TIFF", save_all=True, append_images=frames)),
        *(_encoded("GIF", "P"), _encoded("GIF", save_all=True, append_images=frames, loop=0)),
        *(_encoded("EPS"), _encoded("ICO"), _encoded("PDF"), _encoded("TGA"), _encoded("PCX"), _encoded("SGI")),
        *(b"P6 99999 99999 255\n", b"P3\n2 2\n255\n" + b"1 " * 12, b"P5 1 1 65535\n\x00\x00", b"P6\n#" + b"a" * 70000),
    ]


@st.composite
def image_files(draw: st.DrawFn) -> bytes:
    """Images of every format, edited; PNG also with right checksums after the edit, so that more of it is reached."""
    if draw(st.integers(0, 3)):
        return draw(edited_bytes(_image_seeds()))
    data = draw(st.sampled_from([seed for seed in _image_seeds() if seed.startswith(b"\x89PNG")]))
    chunks, at = [], 8
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + size]))
        at += 12 + size
    extra = st.tuples(st.sampled_from(CHUNKS), st.binary(max_size=30))
    chunks[1:1] = draw(st.lists(extra, max_size=2))
    place = draw(st.integers(0, len(chunks) - 1))
    chunks[place] = (chunks[place][0], draw(edited_bytes([chunks[place][1]], most=2)))
    parts = (struct.pack(">I", len(b)) + k + b + struct.pack(">I", zlib.crc32(k + b)) for k, b in chunks)
    return data[:8] + b"".join(parts)


def _image(data: bytes) -> None:
    pixels = decode_rgb(data, "image")
    expect(pixels.ndim == 3 and pixels.shape[0] == 3 and str(pixels.dtype) == "torch.uint8", f"{pixels.shape}")
    resized = decode_rgb(data, "image", make_transform("bicubic16crop8"))
    expect(tuple(resized.shape) == (3, 8, 8), f"{resized.shape}")


# Tars and folders.

NAMES = (
    *"a/1.png a/2.jpg b/1.png b/x.txt n01440764/1.JPEG n99999999/1.png 7/1.png 0999/1.png .hidden/1.png ../out.png".split(),
    *("/abs.png", "a\\b.png", "a/\x1b[31m.png", "a/\n.png", "é/ü.png", "a/" + "x" * 200 + ".png", "\u202e/1.png"),
    *"accordion/1.png __x/1.png 1.png a/b/c/1.png a-1/1.png [red]/1.png a/1.PNG =1+1/1.png".split(),
)
SPECIAL = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE)
CHUNKS = (b"tRNS", b"PLTE", b"iCCP", b"zTXt", b"acTL", b"fcTL", b"IDAT", b"gAMA")


@st.composite
def _tar_members(draw: st.DrawFn) -> bytes:
    stream = io.BytesIO()
    form = draw(st.sampled_from((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT)))
    with tarfile.open(fileobj=stream, mode="w", format=form) as archive:
        for name in draw(st.lists(st.sampled_from(NAMES[:17]), max_size=4)):
            info = tarfile.TarInfo(name[:99])
            info.type = draw(st.sampled_from((*[tarfile.REGTYPE] * 6, *SPECIAL)))
            data = draw(st.sampled_from((_image_seeds()[0], b"", b"x")))
            info.size = len(data) if info.isreg() else 0
            info.linkname = "/etc/passwd" if not info.isreg() else ""
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def tar_files() -> st.SearchStrategy[bytes]:
    return st.one_of(_tar_members(), _tar_members().flatmap(lambda data: edited_bytes([data])))


def _tar(data: bytes) -> None:
    path = written("a.tar", data)
    for image in images_in_tar(path):
        image.read()
        expect(".." not in image.name.split("/") and not image.name.startswith("/"), image.name)
    for open_layout in (numbered_folders, caltech101, partial(synset_folders, allowed=None, number_within=False)):
        try:
            _read(open_layout(path, "crop8"))
        except UsageError as error:
            expect(str(error).isprintable(), repr(str(error)))


def _folder(entries: list[tuple[str, str]]) -> None:
    root = emptied("folder")
    for name, kind in entries:
        path = root / name
        try:
            outside = not path.resolve().is_relative_to(root) or path.exists()
        except (OSError, ValueError, RuntimeError):  # no name for a file
            continue
        if outside:
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == "image":
                path.write_bytes(_image_seeds()[0])
            elif kind == "folder":
                path.mkdir(exist_ok=True)
            elif kind == "pipe":
                os.mkfifo(path)
            elif kind in ("broken", "empty"):
                path.write_bytes(b"\x89PNG\r\n" if kind == "broken" else b"")
            else:
                path.symlink_to(kind)
        except (OSError, ValueError):
            continue
    images_in_folder(root)
    data = load_data(f"folder:{root}@crop8")
    expect(len(set(data.rows)) == len(data.rows), "a row twice")
    data.read(data.rows[:3])


def folders() -> st.SearchStrategy[list[tuple[str, str]]]:
    kinds = st.sampled_from(
        ("image",) * 5 + ("folder", "pipe", "broken", "empty", "/etc/passwd", "..", ".", "1.png", "loop")
    )
    names = st.one_of(st.sampled_from(NAMES), st.sampled_from(ODD_WORDS[:40]).map(lambda w: f"{w[:60]}/1.png"))
    return st.lists(st.tuples(names, kinds), max_size=5)


# Small lists.


def _mat_seed() -> bytes:
    def element(kind: int, body: bytes) -> bytes:
        return struct.pack("<II", kind, len(body)) + body + b"\x00" * (-len(body) % 8)

    parts = element(6, struct.pack("<II", 6, 0)) + element(5, struct.pack("<ii", 1, 4)) + element(1, b"labels")
    matrix = element(14, parts + element(9, np.array([1.0, 2, 3, 102]).tobytes()))
    packed = zlib.compress(matrix)
    return b"MATLAB 5.0".ljust(124) + b"\x00\x01IM" + matrix + struct.pack("<II", 15, len(packed)) + packed


def _matfile(data: bytes) -> None:
    try:
        read_numbers(data, "labels")
    except (ValueError, zlib.error) as error:  # what its caller turns into a refusal
        raise UsageError(f"no list ({type(error).__name__})") from error


def _class_list(text: str) -> None:
    numbers = classes_from_synsets(text, "a list")
    expect(list(numbers) == sorted(set(numbers)), "classes out of order")


def _row_list(text: bytes) -> None:
    data = load_data(f"cifar10-demo[file:{written('rows.txt', text)}]", data_dir=scratch())
    expect(len(set(data.rows)) == len(data.rows), "a row twice")


TARGETS = (
    Target("npz", npz_files, _npz_file),
    Target("npy", npy_files, _npy_file),
    Target("parquet", lambda: edited_bytes(_parquet_seeds()), _parquet_file),
    Target("images", image_files, _image, megabytes=600),
    Target("tars", tar_files, _tar),
    Target("folders", folders, _folder),
    Target("matlab lists", lambda: edited_bytes([_mat_seed()]), _matfile),
    Target("lists of classes", lambda: edited_texts(["n01440764\nn01443537\nn02085620", "n01440764"]), _class_list),
    Target("lists of rows", lambda: edited_bytes([b"1\n2\n3\n", b"7 8\n", b"999"]), _row_list),
)
