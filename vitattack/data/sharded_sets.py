"""The data sets of CLIP_benchmark on the hub: test images in numbered tars, all in one layout."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path

from vitattack.core.errors import UsageError
from vitattack.core.files import no_pipe
from vitattack.data.entry import OpenedSet, check_count
from vitattack.data.hub_sets import OnHub, cached_paths, fetch_from_hub

OWNER = "clip-benchmark"
COUNT = "test/nshards.txt"
MOST_SHARDS = 10_000


@dataclass(frozen=True)
class ShardedSet(OnHub):
    """The test images of a repository `clip-benchmark/wds_NAME`, from the hub or from a folder that holds its files."""

    summary: str
    repo: str
    num_classes: int
    rows: int
    px: int | None = None  # of images that are used as they are stored

    @property
    def takes_transform(self) -> bool:  # type: ignore[override]
        return self.px is None

    def file_names(self) -> tuple[str, ...]:
        return (COUNT,)

    def check_files(self, data_dir: Path | None, part: str = "") -> None:
        if data_dir is not None and self._folder(data_dir) is None:
            raise UsageError(f"no {self.repo}/{COUNT} in '{data_dir}': give --data-dir a folder with the hub's layout")

    def paths(self, data_dir: Path | None) -> list[Path]:
        """The tars in their order, fetched where no folder is given."""
        if data_dir is None:
            names = _shard_names(fetch_from_hub(self.repo, COUNT))
            return [fetch_from_hub(self.repo, name) for name in names]
        self.check_files(data_dir)
        folder = self._folder(data_dir) or data_dir
        paths = [folder / name for name in _shard_names(folder / COUNT)]
        missing = next((path for path in paths if not path.is_file()), None)
        if missing is not None:
            raise UsageError(f"'{missing}' is missing, {len(paths)} files belong to the set: fetch it")
        return paths

    def location(self, data_dir: Path | None) -> str:
        folder = self._folder(data_dir)
        return str(folder) if folder else f"hub: {self.repo}"

    def is_at_hand(self, data_dir: Path | None, part: str = "") -> bool:
        return self.content_paths(data_dir) is not None

    def content_paths(self, data_dir: Path | None, part: str = "") -> Sequence[Path] | None:
        if data_dir is not None:
            return self.paths(data_dir) if self._folder(data_dir) else None
        count = cached_paths(self.repo, [COUNT])
        return cached_paths(self.repo, _shard_names(count[0])) if count else None

    def open(self, data_dir: Path | None, part: str = "", transform: str = "none") -> OpenedSet:
        from vitattack.data.formats.shards import ShardedImages

        paths = self.paths(data_dir)
        source = ShardedImages(paths, self.num_classes, transform)
        check_count(len(source), self.rows, str(paths[0].parent))
        return OpenedSet(source)

    def _folder(self, data_dir: Path | None) -> Path | None:
        """The folder of this set: with the hub's layout, or with that of the repository alone."""
        places = () if data_dir is None else (data_dir / self.repo, data_dir / self.repo.partition("/")[2], data_dir)
        return next((place for place in places if (place / COUNT).is_file()), None)


def _shard_names(count: Path) -> list[str]:
    """The names of the tars that the file says there are."""
    try:
        text = no_pipe(count).read_bytes()[:20].decode("ascii", "replace").strip()
    except OSError as error:
        raise UsageError(f"cannot read '{count}' ({error.strerror}): fetch it again") from error
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= MOST_SHARDS):
        raise UsageError(f"'{count}' does not say how many tars there are: fetch it again")
    return [f"test/{number}.tar" for number in range(int(text))]


def robustvlm_draw(shards: Sequence[int], count: int = 1000) -> tuple[int, ...]:
    """The rows that RobustVLM evaluates of a set in tars of these sizes.

    Four readers take every fourth tar each, shuffle what they read in a buffer of 10,000 with seed 0 (webdataset 0.2.48),
    and give batches of 50 in turn.
    """
    batches = zip_longest(*(_batches(shards, reader) for reader in range(4)), fillvalue=())
    return tuple(islice((row for turn in batches for batch in turn for row in batch), count))


def _batches(shards: Sequence[int], reader: int) -> Iterator[list[int]]:
    starts = [sum(shards[:number]) for number in range(len(shards))]
    rows = (row for at in range(reader, len(shards), 4) for row in range(starts[at], starts[at] + shards[at]))
    shuffled = _shuffled(rows)
    while batch := list(islice(shuffled, 50)):
        yield batch


def _shuffled(rows: Iterator[int], size: int = 10_000) -> Iterator[int]:
    rng = random.Random(0)  # nosec B311  # a published draw, nothing secret
    buffer: list[int] = []

    def pick() -> int:
        at = rng.randint(0, len(buffer) - 1)
        buffer[at], last = buffer[-1], buffer[at]
        buffer.pop()
        return last

    for row in rows:
        buffer.append(row)
        if len(buffer) < size:
            buffer.extend(islice(rows, 1))
        if len(buffer) >= size:
            yield pick()
    while buffer:
        yield pick()


def _set(
    name: str, repo: str, num_classes: int, rows: int, title: str, px: int | None = None
) -> tuple[str, ShardedSet]:
    kind = f"{title}, {rows:,} test images in CLIP_benchmark's tars"
    return f"wds-{name}", ShardedSet(kind, f"{OWNER}/wds_{repo}", num_classes, rows, px)


SHARDED_SETS: dict[str, ShardedSet] = dict(
    (
        _set("caltech101", "vtab-caltech101", 102, 6085, "Caltech-101"),
        _set("cars", "cars", 196, 8041, "Stanford Cars"),
        _set("cifar10", "vtab-cifar10", 10, 10_000, "CIFAR-10", 32),
        _set("cifar100", "vtab-cifar100", 100, 10_000, "CIFAR-100", 32),
        _set("dtd", "vtab-dtd", 47, 1880, "Describable Textures"),
        _set("eurosat", "vtab-eurosat", 10, 5400, "EuroSAT"),
        _set("fgvc-aircraft", "fgvc_aircraft", 100, 3333, "FGVC Aircraft"),
        _set("flowers", "vtab-flowers", 102, 6149, "Oxford Flowers-102"),
        _set("imagenet-r", "imagenet-r", 200, 30_000, "ImageNet-R"),
        _set("imagenet-sketch", "imagenet_sketch", 1000, 50_889, "ImageNet-Sketch"),
        _set("pcam", "vtab-pcam", 2, 32_768, "PatchCamelyon"),
        _set("pets", "vtab-pets", 37, 3669, "Oxford-IIIT Pet"),
        _set("stl10", "stl10", 10, 8000, "STL-10", 96),
    )
)
