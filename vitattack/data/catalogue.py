"""The data sets known by name, and where their files come from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vitattack._assets import EMBEDDED
from vitattack.data.sources import ParquetSource
from vitattack.errors import UsageError


@dataclass(frozen=True)
class HubSet:
    """One split of an image data set on the Hugging Face hub, or the same files in a local folder."""

    summary: str
    repo: str
    file: str
    label: str
    num_classes: int
    rows: int
    image: str = "img"

    def open(self, data_dir: Path | None) -> ParquetSource:
        return ParquetSource(
            [self._local(data_dir) if data_dir else self.fetch()], self.image, self.label, self.num_classes
        )

    def where(self, data_dir: Path | None) -> str:
        if data_dir and (data_dir / self.repo / self.file).is_file():
            return str(data_dir / self.repo / self.file)
        return f"hub: {self.repo}"

    def _local(self, data_dir: Path) -> Path:
        for candidate in (data_dir / self.repo / self.file, data_dir / self.file):
            if candidate.is_file():
                return candidate
        raise UsageError(f"no {self.repo}/{self.file} in '{data_dir}': give --data-dir a folder with the hub's layout")

    def fetch(self) -> Path:
        from huggingface_hub import hf_hub_download

        try:
            return Path(hf_hub_download(self.repo, self.file, repo_type="dataset"))
        except Exception as error:  # the hub client and its transport each raise their own kinds
            raise UsageError(
                f"cannot fetch {self.repo} from the hub ({type(error).__name__}) and it is not cached: "
                "connect and run again, or give --data-dir a folder that holds it"
            ) from error


@dataclass(frozen=True)
class EmbeddedSet:
    """Images that ship with the package."""

    summary: str
    file: str
    num_classes: int
    rows: int

    def open(self, data_dir: Path | None) -> ParquetSource:
        return ParquetSource([EMBEDDED / self.file], "img", "label", self.num_classes)

    def where(self, data_dir: Path | None) -> str:
        return "embedded"


CIFAR10, CIFAR100 = "uoft-cs/cifar10", "uoft-cs/cifar100"
CATALOGUE: dict[str, HubSet | EmbeddedSet] = {
    "cifar10-demo": EmbeddedSet("1,000 CIFAR-10 test images, 100 per class", "cifar10-demo.parquet", 10, 1000),
    "cifar10-calib": EmbeddedSet("128 CIFAR-10 training images for calibration", "cifar10-calib.parquet", 10, 128),
    "cifar10": HubSet(
        "CIFAR-10, the 10,000 test images", CIFAR10, "plain_text/test-00000-of-00001.parquet", "label", 10, 10_000
    ),
    "cifar10-train": HubSet(
        "CIFAR-10, the 50,000 training images", CIFAR10, "plain_text/train-00000-of-00001.parquet", "label", 10, 50_000
    ),
    "cifar100": HubSet(
        "CIFAR-100, the 10,000 test images", CIFAR100, "cifar100/test-00000-of-00001.parquet", "fine_label", 100, 10_000
    ),
    "cifar100-train": HubSet(
        "CIFAR-100, the 50,000 training images",
        CIFAR100,
        "cifar100/train-00000-of-00001.parquet",
        "fine_label",
        100,
        50_000,
    ),
}
