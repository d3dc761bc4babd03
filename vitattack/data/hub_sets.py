"""Data sets that ship with the package or lie on the Hugging Face hub, and their files in the hub's cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitattack.core.assets import EMBEDDED
from vitattack.core.errors import UsageError
from vitattack.core.files import offline_variable
from vitattack.data.entry import EntryDefaults, OpenedSet, check_count


def fetch_from_hub(repo: str, file: str) -> Path:
    """A file of a data set on the hub, from its cache or the network."""
    from huggingface_hub import hf_hub_download

    from vitattack.models.weights import hub

    forbidden = offline_variable()
    lost = None if forbidden else hub.unreachable_host()
    try:
        with hub.discreet_client():
            # Not pinned: the rows are hashed into every key.
            local = bool(forbidden or lost)
            return Path(hf_hub_download(repo, file, repo_type="dataset", local_files_only=local))  # nosec B615
    except Exception as error:  # the hub client and its transport each raise their own kinds
        reason = f"{forbidden} is set" if forbidden else f"{lost} cannot be reached" if lost else type(error).__name__
        raise UsageError(
            f"cannot fetch {repo} from the hub ({reason}) and it is not cached: "
            "connect and run again, or give --data-dir a folder that holds it"
        ) from error


def find_in_folder(data_dir: Path, repo: str, file: str) -> Path | None:
    """The same file in a folder with the hub's layout, or with the layout of the repository alone."""
    return next((path for path in (data_dir / repo / file, data_dir / file) if path.is_file()), None)


def cached_paths(repo: str, files: Sequence[str]) -> list[Path] | None:
    """These files in the hub's cache; None unless it holds them all."""
    from huggingface_hub import try_to_load_from_cache

    found = [try_to_load_from_cache(repo, file, repo_type="dataset") for file in files]
    paths = [Path(path) for path in found if isinstance(path, str)]
    return paths if len(paths) == len(files) else None


def is_cached(repo: str, files: Sequence[str]) -> bool:
    """Whether the hub's cache holds all of these files."""
    return cached_paths(repo, files) is not None


@dataclass(frozen=True)
class EmbeddedSet(EntryDefaults):
    """Images that ship with the package."""

    summary: str
    file: str
    num_classes: int
    rows: int
    px: int | None = 32
    origin = "shipped with vitattack"

    def open(self, data_dir: Path | None, part: str = "", transform: str = "none") -> OpenedSet:
        from vitattack.data.formats.row_sources import ParquetSource

        return OpenedSet(ParquetSource([EMBEDDED / self.file], "img", "label", self.num_classes))

    def content_paths(self, data_dir: Path | None, part: str = "") -> Sequence[Path]:
        return [EMBEDDED / self.file]


class OnHub(EntryDefaults):
    """Files of one repository on the hub, or the same files in a local folder."""

    repo: str

    def file_names(self) -> tuple[str, ...]:
        raise NotImplementedError

    @property
    def origin(self) -> str:
        return f"huggingface.co/datasets/{self.repo}"

    def check_files(self, data_dir: Path | None, part: str = "") -> None:
        if data_dir is None:
            return
        for file in self.file_names():
            if find_in_folder(data_dir, self.repo, file) is None:
                raise UsageError(
                    f"no {self.repo}/{file} in '{data_dir}': give --data-dir a folder with the hub's layout"
                )

    def paths(self, data_dir: Path | None) -> list[Path]:
        """The files, fetched where no folder is given."""
        if data_dir is None:
            return [fetch_from_hub(self.repo, file) for file in self.file_names()]
        self.check_files(data_dir)
        paths = [find_in_folder(data_dir, self.repo, file) for file in self.file_names()]
        return [path for path in paths if path is not None]

    def location(self, data_dir: Path | None) -> str:
        return str(data_dir) if data_dir and self.is_at_hand(data_dir) else f"hub: {self.repo}"

    def is_at_hand(self, data_dir: Path | None, part: str = "") -> bool:
        if data_dir is None:
            return is_cached(self.repo, self.file_names())
        return all(find_in_folder(data_dir, self.repo, file) for file in self.file_names())

    def content_paths(self, data_dir: Path | None, part: str = "") -> Sequence[Path] | None:
        if data_dir is None:
            return cached_paths(self.repo, self.file_names())
        return self.paths(data_dir) if self.is_at_hand(data_dir) else None


@dataclass(frozen=True)
class HubSet(OnHub):
    """One split of a small image data set, a parquet file."""

    summary: str
    repo: str
    file: str
    label: str
    num_classes: int
    rows: int
    image: str = "img"
    px: int | None = 32

    def file_names(self) -> tuple[str, ...]:
        return (self.file,)

    def location(self, data_dir: Path | None) -> str:
        path = find_in_folder(data_dir, self.repo, self.file) if data_dir else None
        return str(path) if path else f"hub: {self.repo}"

    def open(self, data_dir: Path | None, part: str = "", transform: str = "none") -> OpenedSet:
        from vitattack.data.formats.row_sources import ParquetSource

        return OpenedSet(ParquetSource(self.paths(data_dir), self.image, self.label, self.num_classes))


@dataclass(frozen=True)
class HubArrays(OnHub):
    """Generated images in one or more npz files, each mapped into memory and none joined."""

    summary: str
    repo: str
    files: tuple[str, ...]
    num_classes: int
    rows: int
    px: int | None = 32

    def file_names(self) -> tuple[str, ...]:
        return self.files

    def open(self, data_dir: Path | None, part: str = "", transform: str = "none") -> OpenedSet:
        from vitattack.data.formats.arrays import npz_parts

        paths = self.paths(data_dir)
        source = npz_parts(paths, self.num_classes)
        check_count(len(source), self.rows, str(paths[0].parent))
        return OpenedSet(source)
