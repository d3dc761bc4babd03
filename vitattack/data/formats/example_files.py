"""Adversarial examples in files, whoever made them: safetensors, npz, a folder of images, or a stored run."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitattack.core.errors import UsageError, first_line
from vitattack.core.files import file_sha256, no_pipe
from vitattack.core.words import printable
from vitattack.data.formats.array_on_disk import Array, ArrayOnDisk, Rows
from vitattack.data.formats.arrays import named_arrays
from vitattack.data.formats.decoding import decode_rgb
from vitattack.records.saved_examples import FOLDER, IMAGES, SavedExamples
from vitattack.records.sealed import load_intact

NAMES = {
    "x_adv": ("x_adv", "adv", "x_advs", "advs", "adv_inputs", "adversarial", "images", "image"),
    "label": ("label", "labels", "y", "y_true"),
    "prediction": ("prediction", "predictions", "pred", "preds"),
    "index": ("index", "indices", "idx", "row", "rows"),
}
IMAGE_SUFFIXES = (".png", ".bmp", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".ppm")
LOSSY = (".jpg", ".jpeg", ".webp")
NUMBERED = re.compile(r"(\d{1,12})(?:-label(\d{1,9})(?:-as(-?\d{1,9}))?)?(?:[-_.].*)?")
LARGEST = 1.5  # a pixel beyond this is meant in steps of 1/255


@dataclass(frozen=True)
class ExampleFile:
    """Adversarial images, with what their file says of them; `index` holds rows of the data set."""

    path: Path
    digest: str
    shape: tuple[int, ...]  # (N, C, H, W)
    row: Callable[[int], Tensor] = field(repr=False)  # float32 CHW, as in the file
    index: tuple[int, ...] | None = None
    label: tuple[int, ...] | None = None
    prediction: tuple[int, ...] | None = None
    weights: str | None = None  # digest of the model that the predictions are of; None where it is that at hand
    run: str = ""  # the key of the run that they are from

    @property
    def name(self) -> str:
        """A short name of what is verified."""
        return f"run-{self.run[:8]}" if self.run else self.path.name

    def __len__(self) -> int:
        return self.shape[0]


def read_examples(path: Path) -> ExampleFile:
    """The examples in a file or folder; raises UsageError for anything that holds none."""
    try:
        if path.is_dir():
            return _folder(path)
        no_pipe(path)
        if not path.exists():
            raise UsageError(f"there are no examples at '{path}': name a .safetensors or .npz file, a folder or a run")
        if path.suffix == ".safetensors":
            return _safetensors(path)
        if path.suffix == ".npz":
            return _npz(path)
    except OSError as error:
        raise UsageError(f"cannot read '{path}' ({error.strerror or type(error).__name__}): check the file") from error
    raise UsageError(f"'{path}' is of no known kind: save x_adv and label with numpy.savez, or as .safetensors")


def _npz(path: Path) -> ExampleFile:
    found = named_arrays(path, list(NAMES.values()))
    arrays = {name: each for name, each in zip(NAMES, found, strict=True) if each is not None}
    return _from_arrays(path, file_sha256(path), arrays)


class _Slices:
    """Rows of a tensor in a safetensors file, read when asked for."""

    def __init__(self, part: Any) -> None:
        self._part = part
        self.shape = tuple(part.get_shape())
        self.dtype = part.get_dtype()

    def __getitem__(self, at: int) -> Array:
        row: Array = self._part[at : at + 1][0]
        return row


def _safetensors(path: Path) -> ExampleFile:
    from safetensors import SafetensorError, safe_open

    try:
        file: Any = safe_open(path, framework="np")
        held = set(file.keys())
        arrays: dict[str, Any] = {}
        for name, choices in NAMES.items():
            key = next((choice for choice in choices if choice in held), None)
            if key is not None:
                part = file.get_slice(key)
                if part.get_dtype() not in ("F64", "F32", "F16", "U8", "I64", "I32", "I16", "I8", "U16", "U32", "U64"):
                    raise UsageError(f"'{path}' holds {key} as {part.get_dtype()}: save float32 images, integer labels")
                arrays[name] = _Slices(part) if name == "x_adv" else file.get_tensor(key)
    except SafetensorError as error:
        raise UsageError(f"'{path}' is not a whole safetensors file ({first_line(error)}): save it again") from error
    if "x_adv" not in arrays:
        raise UsageError(_lacking(path, held))
    return _from_arrays(path, file_sha256(path), arrays)


def _lacking(path: Path, held: Sequence[str] | set[str]) -> str:
    names = ", ".join(sorted(printable(name, 20) for name in held)[:6]) or "nothing"
    return f"'{path}' holds {names} and no x_adv: name the images x_adv, and the labels label"


def _from_arrays(path: Path, digest: str, arrays: dict[str, Any]) -> ExampleFile:
    x = arrays.get("x_adv")
    if x is None:
        raise UsageError(_lacking(path, list(arrays)))
    numbers = {name: _whole_numbers(path, name, each) for name, each in arrays.items() if name != "x_adv"}
    shape = tuple(x.shape)
    if len(shape) != 4 or 0 in shape:
        raise UsageError(f"'{path}' has images of shape {shape}: give (N, C, H, W) or (N, H, W, C)")
    last = shape[3] in (1, 3) and shape[1] not in (1, 3)
    for name, values in numbers.items():
        if len(values) != shape[0]:
            raise UsageError(f"'{path}' has {shape[0]} images and {len(values)} of {name}: give one per image")
    first = _pixels(np.asarray(x[0]), last)
    if float(first.nan_to_num(0.0).abs().max()) > LARGEST:
        raise UsageError(f"'{path}' has pixels up to {float(first.nan_to_num(0.0).max()):g}: divide them by 255")
    n, c, h, w = (shape[0], shape[3], shape[1], shape[2]) if last else shape
    return ExampleFile(
        path, digest, (n, c, h, w), lambda at: _pixels(np.asarray(x[at]), last),
        numbers.get("index"), numbers.get("label"), numbers.get("prediction"),
    )  # fmt: skip


def _pixels(row: Array, last: bool) -> Tensor:
    if row.dtype.kind not in "fu" or (row.dtype.kind == "u" and row.dtype != np.uint8):
        raise UsageError(f"the examples are of type {row.dtype}: use floats in [0,1] or bytes")
    row = np.ascontiguousarray(row.transpose(2, 0, 1) if last else row)
    pixels = torch.from_numpy(row.astype(row.dtype.newbyteorder("=")))
    return pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels.float()


def _whole_numbers(path: Path, name: str, values: Rows) -> tuple[int, ...]:
    array = values.whole() if isinstance(values, ArrayOnDisk) else np.asarray(values)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise UsageError(
            f"'{path}' has {name} of type {array.dtype} and shape {array.shape}: give an integer per image"
        )
    return tuple(int(value) for value in array)


def _folder(path: Path) -> ExampleFile:
    for run in (path, path.parent if path.name == FOLDER else path):
        saved = SavedExamples(run)
        if len(saved):
            return _saved(run, saved)
    images = path / IMAGES if (path / IMAGES).is_dir() else path
    files = sorted(each for each in images.iterdir() if each.suffix.lower() in IMAGE_SUFFIXES and each.is_file())
    if not files:
        raise UsageError(f"folder '{path}' holds no examples: give images named by their row, such as 000417.png")
    lossy = next((each for each in files if each.suffix.lower() in LOSSY), None)
    if lossy is not None:
        raise UsageError(f"'{lossy}' is compressed with losses, which changes every pixel: save PNGs")
    found = [NUMBERED.fullmatch(each.stem) for each in files]
    strange = next((each for each, match in zip(files, found, strict=True) if match is None), None)
    if strange is not None:
        raise UsageError(f"'{printable(strange.name)}' does not begin with the row of its image: name it 000417.png")
    matches = [match for match in found if match is not None]
    labels = tuple(int(match[2]) for match in matches if match[2])
    said = tuple(int(match[3]) for match in matches if match[3])
    hasher = hashlib.sha256()
    for each in files:
        hasher.update(f"{each.name} {file_sha256(each)}|".encode())

    def row(at: int) -> Tensor:
        return decode_rgb(files[at].read_bytes(), f"'{files[at]}'").float() / 255

    return ExampleFile(
        path, hasher.hexdigest(), (len(files), *row(0).shape), row, tuple(int(match[1]) for match in matches),
        labels if len(labels) == len(files) else None, said if len(said) == len(files) else None,
    )  # fmt: skip


def _saved(run: Path, saved: SavedExamples) -> ExampleFile:
    """What a run of ours has kept."""
    order = list(saved)
    hasher = hashlib.sha256()
    for file in saved.files:
        hasher.update(file_sha256(file).encode())
    numbers = saved.numbers()
    job = load_intact(run / "job.json") or {}
    shape = saved[order[0]].x_adv.shape
    return ExampleFile(
        run, hasher.hexdigest(), (len(order), *shape), lambda at: torch.from_numpy(saved[order[at]].x_adv),
        tuple(order), tuple(numbers["label"]), tuple(numbers["prediction"]),
        str(job.get("weights", "")).partition(" ")[0] or None, str(job.get("key", "")),
    )  # fmt: skip
