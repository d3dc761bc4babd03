"""Adversarial examples kept beside the records of a run: a safetensors file per batch, read without torch.

    adversarial/pass1-batch000000.safetensors    index, label, clean, prediction, x, x_adv

`x` is what the model was given and `x_adv` the candidate of the attack, which is the clean image where it made none. A later
pass holds the samples that it broke, and counts for them. A file names the records that it was written for by their
checksum: it is on disk before they are, and no example is shown with the records of another run.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitattack.core.errors import UsageError, VitattackError
from vitattack.core.files import cannot_write, no_pipe, replace_content
from vitattack.records.batch import Batch
from vitattack.records.record import SampleRecord
from vitattack.records.scan import scan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

FOLDER, IMAGES = "adversarial", "png"
SCHEMA = 1
NUMBERS = ("index", "label", "clean", "prediction")
TENSORS = (*NUMBERS, "x", "x_adv")
Key = tuple[int, int]  # pass, and place of the batch in it


@dataclass(frozen=True)
class Example:
    """A sample of a run: the clean image, the candidate, and what the model said of both; images are float32 CHW in [0,1]."""

    index: int
    label: int
    clean: int  # prediction on x
    prediction: int  # on x_adv; -1 where there is no valid one
    x: Array
    x_adv: Array


@dataclass(frozen=True)
class Columns:
    """Several examples, a row each."""

    index: Array
    label: Array
    clean: Array
    prediction: Array
    x: Array
    x_adv: Array


def folder_of(run: Path) -> Path:
    """Where the examples of a run are."""
    return run / FOLDER


def write_examples(run: Path, batch: Batch, about: Mapping[str, str], x: Array, x_adv: Array) -> None:
    """Write the examples of a batch whole or not at all; they are on disk when this returns."""
    import numpy as np
    from safetensors.numpy import save

    kept = kept_rows(batch)
    records = [batch.records[at] for at in kept]
    columns = {
        "index": [record.index for record in records],
        "label": [record.label for record in records],
        "clean": [record.clean for record in records],
        "prediction": [_prediction(record) for record in records],
    }
    tensors: dict[str, Array] = {name: np.array(values, dtype=np.int64) for name, values in columns.items()}
    tensors |= {"x": in_bytes(x[kept]), "x_adv": np.ascontiguousarray(x_adv[kept], dtype=np.float32)}
    seal = {"schema": SCHEMA, "records": checksum(batch), "tensors": _checksum_of(tensors)}
    metadata = {"vitattack": json.dumps({**about, **seal})}  # of one key: those of several are written in any order
    path = _place(run, batch.key)
    try:
        path.parent.mkdir(exist_ok=True)
        replace_content(path, save(tensors, metadata))
    except OSError as error:
        raise cannot_write(path, error) from error


def kept_rows(batch: Batch) -> list[int]:
    """Places of the records whose candidate counts: of the first pass all, of a later one those that it broke."""
    first = batch.pass_number == 1
    return [at for at, record in enumerate(batch.records) if first or record.status == "fooled"]


def checksum(batch: Batch) -> str:
    """The checksum of the records of a batch."""
    return f"{zlib.crc32(''.join([record.line() + chr(10) for record in batch.records]).encode()):08x}"


def in_bytes(x: Array) -> Array:
    """Images as bytes where these say exactly the same, as those of image files do; else as they are."""
    import numpy as np

    with np.errstate(invalid="ignore"):
        bytes_ = np.rint(x * np.float32(255)).astype(np.uint8)
    return bytes_ if np.array_equal(from_bytes(bytes_), x) else np.ascontiguousarray(x, dtype=np.float32)


def from_bytes(x: Array) -> Array:
    """Stored images as float32 in [0,1]."""
    import numpy as np

    return x.astype(np.float32) / np.float32(255) if x.dtype == np.uint8 else x


def forget_examples(run: Path, numbers: Iterable[int] | None = None) -> None:
    """Delete the examples of these batches of the first pass, or all of a run."""
    folder = folder_of(run)
    if not folder.is_dir():
        return
    mine = None if numbers is None else {_place(run, (1, number)) for number in numbers}
    for path in [*folder.glob("*.safetensors"), *folder.glob(f"{IMAGES}/*.png")]:
        if mine is None or path in mine or path.parent.name == IMAGES:
            path.unlink(missing_ok=True)
    with suppress(OSError):  # not empty
        (folder / IMAGES).rmdir()
    with suppress(OSError):
        folder.rmdir()


def holds_examples(run: Path, batch: Batch) -> bool:
    """Whether the examples of a batch are on disk, for the records that it has."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(no_pipe(_place(run, batch.key)), framework="np") as file:
            about = _about(file.metadata())
            return about.get("schema") == SCHEMA and about.get("records") == checksum(batch)
    except (OSError, SafetensorError):
        return False


def has_all_examples(run: Path) -> bool:
    """Whether the examples of every stored batch of a run are on disk."""
    batches = _batches(run)
    return bool(batches) and all(holds_examples(run, batch) for batch in batches)


class SavedExamples:
    """The examples of a run by index, in the order of its records; images are read when asked for.

    Examples whose records have changed since, and unreadable ones, count as missing.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self._places: dict[int, tuple[Path, int]] = {}
        for batch in sorted(_batches(run) if folder_of(run).is_dir() else [], key=lambda batch: batch.key):
            if holds_examples(run, batch):
                path = _place(run, batch.key)
                self._places.update((batch.records[at].index, (path, row)) for row, at in enumerate(kept_rows(batch)))

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold examples which count."""
        return tuple(dict.fromkeys(path for path, _ in self._places.values()))

    def numbers(self) -> dict[str, list[int]]:
        """Index, label and both predictions of every example, without the images."""
        from safetensors import safe_open

        columns: dict[str, list[int]] = {name: [] for name in NUMBERS}
        opened: dict[Path, dict[str, list[int]]] = {}
        for path in self.files:
            with safe_open(path, framework="np") as file:
                opened[path] = {name: file.get_tensor(name).tolist() for name in NUMBERS}
        for path, row in self._places.values():
            for name in NUMBERS:
                columns[name].append(opened[path][name][row])
        return columns

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __contains__(self, index: object) -> bool:
        return index in self._places

    def __getitem__(self, index: int) -> Example:
        columns = self.columns([index])
        index, label, clean, prediction = (int(getattr(columns, name)[0]) for name in NUMBERS)
        return Example(index, label, clean, prediction, columns.x[0], columns.x_adv[0])

    def columns(self, indices: Sequence[int] | None = None) -> Columns:
        """The examples of these samples, by default all, as arrays."""
        import numpy as np
        from safetensors import SafetensorError, safe_open

        asked = list(self._places if indices is None else indices)
        by_file: dict[Path, list[tuple[int, int]]] = {}
        for at, index in enumerate(asked):
            path, row = self._places[index]
            by_file.setdefault(path, []).append((at, row))
        parts: list[tuple[int, tuple[Array, ...]]] = []
        for path, places in by_file.items():
            try:
                with safe_open(no_pipe(path), framework="np") as file:
                    slices = {name: file.get_slice(name) for name in TENSORS}
                    for at, row in places:
                        values = {name: each[row : row + 1] for name, each in slices.items()}
                        parts.append((at, tuple({**values, "x": from_bytes(values["x"])}.values())))
            except (OSError, SafetensorError) as error:
                raise VitattackError(f"{path} is damaged: run the same command again with --save-adv") from error
        parts.sort(key=lambda part: part[0])
        if not parts:
            nothing, none = np.zeros(0, np.int64), np.zeros((0, 0, 0, 0), np.float32)
            return Columns(nothing, nothing, nothing, nothing, none, none)
        if len({x.shape for _, (*_, x) in parts}) > 1:
            raise UsageError("the images of these examples differ in size: read them one by one, by their rows")
        return Columns(*(np.concatenate(values) for values in zip(*(values for _, values in parts), strict=True)))

    def damage(self) -> list[str]:
        """Files whose content is not what was written, by name; reads everything."""
        return [path.name for path in self.files if not _is_whole(path)]


def write_images(run: Path) -> Path:
    """Write every candidate of a run as a PNG of 8 bits, rounded to the nearest; those that are there are kept."""
    import numpy as np
    from PIL import Image

    examples, folder = SavedExamples(run), folder_of(run) / IMAGES
    folder.mkdir(parents=True, exist_ok=True)
    for index in examples:
        example = examples[index]
        place = folder / f"{index:06d}-label{example.label}-as{example.prediction}.png"
        if place.exists():
            continue
        pixels = np.rint(np.clip(np.nan_to_num(example.x_adv), 0, 1) * 255).astype(np.uint8).transpose(1, 2, 0)
        beside = place.with_name(f".{place.name}.tmp")
        try:
            Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(beside, "PNG")
            beside.replace(place)
        except OSError as error:
            raise cannot_write(place, error) from error
    return folder


def _is_whole(path: Path) -> bool:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(no_pipe(path), framework="np") as file:
            about = _about(file.metadata())
            return about.get("tensors") == _checksum_of({name: file.get_tensor(name) for name in TENSORS})
    except (OSError, SafetensorError):
        return False


def _about(metadata: Mapping[str, str] | None) -> dict[str, Any]:
    """What a file says of itself; nothing where it is not one of ours."""
    try:
        content = json.loads((metadata or {}).get("vitattack", "{}"))
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _checksum_of(tensors: Mapping[str, Array]) -> str:
    import numpy as np

    crc = 0
    for name in TENSORS:
        crc = zlib.crc32(np.ascontiguousarray(tensors[name]).tobytes(), crc)
    return f"{crc:08x}"


def _place(run: Path, key: Key) -> Path:
    return folder_of(run) / f"pass{key[0]}-batch{key[1]:06d}.safetensors"


def _batches(run: Path) -> Sequence[Batch]:
    """The whole batches in the record file of a run; nothing where it cannot be read."""
    path = run / "samples.jsonl"
    try:
        return scan(path, no_pipe(path).read_bytes()).batches
    except (OSError, VitattackError):
        return ()


def _prediction(record: SampleRecord) -> int:
    """What the model says of the candidate, which of a misclassified sample is the clean image."""
    return record.clean if record.status == "clean_wrong" and record.adversarial < 0 else record.adversarial
