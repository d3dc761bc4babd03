"""Input files of an evaluation: everything its numbers depend on, as far as it can be listed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vitattack.attacks.perceptual.distances import backbone_file, lpips_missing
from vitattack.core.assets import EMBEDDED, ZOO_FILE
from vitattack.core.errors import VitattackError
from vitattack.data import DataSet
from vitattack.data.corruptions.names import PREFIX as CORRUPTED
from vitattack.data.corruptions.source import Corrupted
from vitattack.data.formats.arrays import ArraySource
from vitattack.data.formats.row_sources import ParquetSource
from vitattack.data.rows import split_rows
from vitattack.models.hugging_face.folder import names_a_folder
from vitattack.models.weights import fetch
from vitattack.models.zoo.catalogue import user_zoo_file
from vitattack.models.zoo.loaded import LoadedModel


def files_named(model: str) -> tuple[Path, ...]:
    """The files that a model's text leads to and that are known before it is opened."""
    named = [Path(model)] if Path(model).is_file() else []
    if names_a_folder(model):
        named = [file for file in Path(model).iterdir() if file.is_file()]
    return (*named, ZOO_FILE, user_zoo_file())


def model_files(loaded: LoadedModel, text: str) -> tuple[Path, ...] | None:
    """The weights of a model and the zoo files that describe it; None if another library keeps its files."""
    described = (ZOO_FILE, user_zoo_file())
    if loaded.files is not None:
        return (*loaded.files, *described)
    if loaded.entry is not None:
        if loaded.entry.weights is None:
            return None
        try:
            weights = fetch.fetch_file(loaded.entry.weights, name=loaded.entry.id, offline=True)
        except VitattackError:
            return None
        return (weights, *described)
    return (Path(text), *described) if loaded.record.get("source") == "file" else None


def image_files(images: DataSet, text: str, data_dir: Path | None) -> tuple[Path, ...] | None:
    """The files of a data set of a few large files, requested as `text`; None for folders and archives."""
    if isinstance(images.source, Corrupted):
        whole = replace(images, source=images.source.inner)
        return image_files(whole, text.removeprefix(f"{CORRUPTED}:"), data_dir)
    source = images.source
    if not isinstance(source, ParquetSource | ArraySource):
        return None
    name, rows = split_rows(text)
    listed = (Path(rows.removeprefix("file:")),) if rows and rows.startswith("file:") else ()
    if name.startswith("npz:"):
        single = Path(name.removeprefix("npz:")).is_file()  # parts may be added to a folder of them
        return (*source.files, *listed) if single else None
    if data_dir is not None and not all(EMBEDDED in path.parents for path in source.files):
        return None  # which of several folders was read is not known here
    return (*source.files, *(ref for path in source.files for ref in _hub_refs(path)), *listed)


def _hub_refs(path: Path) -> Sequence[Path]:
    """The file that names the current revision of a repository in the hub's cache."""
    for parent in path.parents:
        if parent.name == "snapshots":
            return (parent.parent / "refs" / "main",)
    return ()


def perceptual_files() -> tuple[Path, ...] | None:
    """The weights of LPIPS; None if they are missing, since they may be fetched at any time."""
    return (backbone_file(),) if lpips_missing() is None else None
