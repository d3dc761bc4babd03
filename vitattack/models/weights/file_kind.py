"""Kinds of files that people call a model, told by their first bytes and member names; nothing is parsed or run."""

from __future__ import annotations

import io
import pickletools
import zipfile
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from vitattack.core.errors import UsageError
from vitattack.core.files import no_pipe
from vitattack.core.words import printable

Kind = Literal["tensors", "torchscript", "exported", "module"]
PROGRAMS: tuple[Kind, ...] = ("torchscript", "exported", "module")  # to read one is to run it
WORDS = {
    "torchscript": "a TorchScript program",
    "exported": "an exported program (torch.export)",
    "module": "a pickled module",
}
FIRST_BYTES = {
    b"\x1f\x8b": "a gzip archive",
    b"BZh": "a bzip2 archive",
    b"\xfd7zXZ": "an xz archive",
    b"7z\xbc\xaf": "a 7z archive",
    b"Rar!": "a rar archive",
    b"\x93NUMPY": "a NumPy array",
    b"\x89HDF": "an HDF5 file",
    b"\x89PNG": "a picture",
    b"PAR1": "a parquet file",
    b"%PDF": "a PDF document",
    b"version https://git-lfs": "a Git LFS pointer, not the file it points to",
    b"{": "JSON text",
}
ELSEWHERE = {  # suffixes of other frameworks
    ".onnx": "an ONNX graph",
    ".h5": "a Keras model",
    ".keras": "a Keras model",
    ".tflite": "a TensorFlow Lite model",
    ".pb": "a TensorFlow graph",
    ".npz": "an archive of NumPy arrays",
    ".engine": "a TensorRT engine",
    ".mlmodel": "a Core ML model",
    ".gguf": "a GGUF file",
}
BEGINNING = 1 << 20  # bytes of a pickle that tell what it makes


class FileKind(NamedTuple):
    """The kind of a checkpoint file, and the class of a pickled module."""

    kind: Kind
    of: str = ""

    @property
    def words(self) -> str:
        return f"{WORDS[self.kind]}{f' ({self.of})' if self.of else ''}"


def looks_like(head: bytes) -> str:
    """Return the kind of a file by its first bytes: `safetensors`, `zip`, `pickle`, or another in words."""
    text = head[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head", b"<body", b"<script")):
        return "a web page"
    if len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 40:
        return "safetensors"
    if head.startswith(b"PK\x03\x04"):
        return "zip"
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "pickle"
    if head[257:262] == b"ustar":
        return "a tar archive, which is not unpacked"
    for start, kind in FIRST_BYTES.items():
        if head.startswith(start):
            return kind
    return "no checkpoint by its first bytes" if head else "an empty file"


def file_kind(path: Path) -> FileKind:
    """Tell programs from tensors; whatever is damaged counts as tensors, whose reader says what is wrong."""
    try:
        with no_pipe(path).open("rb") as stream:
            kind = looks_like(stream.read(4096))
            if kind == "pickle":
                stream.seek(0)
                return _made_by(stream, pickles=4)  # magic number, version, system, content
        if kind == "zip":
            return _of_archive(path)
    except OSError:
        pass
    return FileKind("tensors")


def _of_archive(path: Path) -> FileKind:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if any(name.endswith("/constants.pkl") for name in names):
                return FileKind("torchscript")
            if any(name.endswith(("/models/model.json", "serialized_exported_program.json")) for name in names):
                return FileKind("exported")
            pickled = next((name for name in names if name.endswith("/data.pkl")), None)
            if pickled is not None:
                with archive.open(pickled) as member:
                    return _made_by(io.BytesIO(member.read(BEGINNING)))
    except (zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError, OSError):
        pass
    return FileKind("tensors")


def _made_by(stream: BinaryIO, pickles: int = 1) -> FileKind:
    """Whether the last of some pickles begins with a class, as one of a module does, and not with a dictionary."""
    try:
        for number in range(pickles):
            texts: list[str] = []
            for position, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
                if number < pickles - 1:
                    continue
                if opcode.name == "GLOBAL":
                    return _of_class(str(argument))
                if opcode.name == "STACK_GLOBAL":
                    return _of_class(" ".join(texts[-2:]))
                if opcode.name in ("EMPTY_DICT", "DICT", "MARK") or position > 12:
                    return FileKind("tensors")
                if isinstance(argument, str):
                    texts.append(argument)
    except Exception:  # noqa: BLE001  # a damaged pickle fails in a dozen ways; its reader says how
        return FileKind("tensors")
    return FileKind("tensors")


def _of_class(named: str) -> FileKind:
    module, _, name = named.partition(" ")
    if module in ("collections", "torch._utils", "argparse", "builtins", "torch", "_codecs") or module.startswith(
        "numpy"
    ):
        return FileKind("tensors")
    return FileKind("module", printable(f"{module}.{name}", 80))


def refuse_other_frameworks(path: Path) -> None:
    """Raise a UsageError for files of other frameworks, by their suffix, with a way to evaluate them."""
    what = ELSEWHERE.get(path.suffix.lower())
    if what is None:
        return
    name = printable(path.name, 60)
    if path.suffix.lower() == ".onnx":
        raise UsageError(
            f"'{name}' is {what}, which torch does not run: in a file of your own write "
            f"'import onnx2torch' and 'def make_model(): return onnx2torch.convert(\"{name}\")', and name it, as in "
            "vitattack eval FILE.py:make_model --normalize none (opset 17 at most: export with dynamo=False, opset_version=17)"
        )
    raise UsageError(
        f"'{name}' is {what}, which torch does not read: convert it to safetensors with torch's tensor names"
    )
