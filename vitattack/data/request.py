"""Data texts such as `cifar10[random:500:1]` taken apart and checked, before any file is opened or torch is imported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.data.catalogue import DATA_SETS
from vitattack.data.corruptions.names import PREFIX as CORRUPTED
from vitattack.data.corruptions.names import split_corruption
from vitattack.data.entry import DataEntry
from vitattack.data.protocols import PROTOCOLS, EvaluationProtocol
from vitattack.data.rows import check_rows, parse_rows, split_rows
from vitattack.text.image_transform import parse_transform

Kind = Literal["set", "protocol", "folder", "npz", "imagenet-classes", "corruptions"]
FOLDER: Kind = "folder"
NPZ: Kind = "npz"
CLASS_FILE: Kind = "imagenet-classes"
PATH_KINDS = (FOLDER, NPZ, CLASS_FILE)


@dataclass(frozen=True)
class DataRequest:
    """A data text taken apart.

    `name` is a data set, a protocol, the path behind folder:, npz: or imagenet-classes:, or the data behind corruptions:.
    """

    text: str
    kind: Kind
    name: str
    part: str = ""  # behind the slash of a data set; kind and severity of a corruption
    transform: str | None = None  # written behind an @
    rows: str | None = None  # in brackets

    @property
    def protocol(self) -> EvaluationProtocol | None:
        return PROTOCOLS[self.name] if self.kind == "protocol" else None

    @property
    def corruption(self) -> tuple[str, int] | None:
        """The kind and the severity of a corruption; None where the data are as they are."""
        kind, _, severity = self.part.partition("/")
        return (kind, int(severity)) if self.kind == CORRUPTED else None

    @property
    def whole(self) -> DataRequest:
        """What is corrupted; the request itself where nothing is."""
        return read_request(self.name) if self.corruption else self

    @property
    def entry(self) -> DataEntry | None:
        """The entry of the catalogue; None where a path is named."""
        if self.kind == "protocol":
            return DATA_SETS[PROTOCOLS[self.name].data]
        return DATA_SETS[self.name] if self.kind == "set" else None

    @property
    def takes_transform(self) -> bool:
        """Whether the pixels depend on a transform: encoded images of any size do, arrays do not."""
        if self.corruption:
            return self.whole.takes_transform
        return self.kind != NPZ if self.entry is None else self.entry.takes_transform

    def require_transform(self, transform: str) -> None:
        """Refuse a transform for a set whose pixels are used as they are stored."""
        if self.corruption:
            self.whole.require_transform(transform)
        if self.entry is not None and not self.takes_transform:
            raise UsageError(f"'{self.name}' is used as it is: drop the transform @{transform[:40]}")

    @property
    def total(self) -> int | None:
        """The number of rows to choose from, where it is known without the files."""
        if self.corruption:
            return self.whole.total
        if self.kind == "protocol":
            return PROTOCOLS[self.name].images
        return None if self.entry is None else self.entry.rows


def read_request(text: str, limit: int | None = None) -> DataRequest:
    """Take a data text apart; unknown names are refused."""
    name, rows = split_rows(text)
    if limit is not None:
        if rows is not None:
            raise UsageError(f"data '{text}' is narrowed twice: give one of [...] and a limit")
        rows = f"limit:{limit}"
    kind, colon, path = name.partition(":")
    if colon and kind == CORRUPTED:
        data, corruption, severity = split_corruption(path)
        read_request(data)
        return DataRequest(text, "corruptions", data, f"{corruption}/{severity}", None, rows)
    if colon and kind in PATH_KINDS:
        return _path_request(text, kind, path, rows)
    full, at, transform = name.partition("@")
    head, _, part = full.partition("/")
    written = transform if at else None
    if full in PROTOCOLS:
        return DataRequest(text, "protocol", full, "", written, rows)
    if head not in DATA_SETS and (of_path := _kind_of_path(full)) is not None:
        return _path_request(text, of_path, name, rows)
    if head not in DATA_SETS:
        known = [
            *DATA_SETS,
            *PROTOCOLS,
            "folder:PATH",
            "npz:PATH",
            f"{CLASS_FILE}:FILE",
            f"{CORRUPTED}:DATA/KIND/SEVERITY",
        ]
        raise UsageError(did_you_mean("data set", full, known, DATA_SETS.renamed))
    return DataRequest(text, "set", head, part, written, rows)


def _kind_of_path(path: str) -> Kind | None:
    """What a path that exists is: an .npz file or a folder; None for anything else."""
    if path.endswith(".npz") and Path(path).is_file():
        return NPZ
    return FOLDER if Path(path).is_dir() else None


def check_data(
    text: str, *, limit: int | None = None, data_dir: Path | None = None, transform: str | None = None
) -> DataRequest:
    """Refuse whatever loading would refuse and is known without opening a file; torch is not imported."""
    check_folder(data_dir)
    request = read_request(text, limit)
    parse_transform(transform or "none")
    if request.transform is not None:
        request.require_transform(request.transform)
        parse_transform(request.transform)
    if request.rows is not None:
        parse_rows(request.rows)
        if request.total is not None:
            check_rows(request.rows, request.total, text)
    if request.corruption:
        check_data(request.name, data_dir=data_dir, transform=transform)
    elif request.entry is None:
        _check_path(request)
    else:
        request.entry.check_part(request.part)
        request.entry.check_files(data_dir, request.part)
    return request


def check_folder(data_dir: Path | None) -> None:
    """Refuse a data folder that does not exist."""
    if data_dir is not None and not as_path(str(data_dir)).is_dir():
        raise UsageError(f"data folder '{data_dir}' does not exist: give --data-dir a folder with the hub's layout")


def takes_transform(text: str) -> bool:
    """Whether the pixels of a data text depend on a transform; False for names that are unknown."""
    try:
        return read_request(text).takes_transform
    except UsageError:
        return False


def as_path(text: str) -> Path:
    """The path a text names; text that no path can have is refused."""
    try:
        Path(text).exists()
    except OSError as error:  # a name too long, say
        raise UsageError(f"'{text[:40]}...' cannot be a path ({error.strerror}): check it") from error
    return Path(text)


def _path_request(text: str, kind: Kind, path: str, rows: str | None) -> DataRequest:
    transform = None
    if kind == FOLDER and "@" in path and not as_path(path).exists():  # the canonical text of a set, read back
        path, _, transform = path.rpartition("@")
    return DataRequest(text, kind, path, "", transform, rows)


def _check_path(request: DataRequest) -> None:
    path = as_path(request.name)
    if request.kind == FOLDER and not path.is_dir():
        raise UsageError(f"folder '{path}' does not exist: give the folder that holds one sub-folder per class")
    if request.kind == NPZ and not path.exists():
        raise UsageError(f"file '{path}' does not exist: check the path after npz:")
    if request.kind == CLASS_FILE and not path.is_file():
        raise UsageError(f"file '{path}' does not exist: give a text file of synsets after {CLASS_FILE}:")
