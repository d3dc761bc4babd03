"""The rows of the red team: trained models and plants, each with its threat and its images."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import yaml
from families import FAMILIES
from pairs import write_pairs
from plants import plant
from torch import Tensor

from vitattack.data import load_data
from vitattack.models.victim import Victim, as_victim
from vitattack.models.zoo.file_options import FileOptions
from vitattack.models.zoo.load import load_model

HERE = Path(__file__).parent
IMAGES, PLANTED, CALIBRATION = 512, 128, 64


@dataclass(frozen=True)
class RedTeamRow:
    """A model of the red team, with a fault planted in it unless `fault` is empty."""

    model: str
    family: str
    threat: str
    classes: int = 10
    fault: str = ""

    @property
    def name(self) -> str:
        return f"{self.model}+{self.fault}" if self.fault else self.model

    @property
    def weights(self) -> Path:
        return weights_of(self.model)

    @property
    def verdict_file(self) -> Path:
        """Verdicts of AutoAttack and the best known, per image."""
        return HERE / "verdicts" / f"{self.name}.json"

    def store(self, folder: Path) -> Path:
        """Where runs on the row are kept."""
        return folder / "runs" / self.name

    @property
    def without_fault(self) -> RedTeamRow:
        return replace(self, fault="")

    @property
    def held_out(self) -> bool:
        """Whether the row is kept out of all tuning: by its name's hash, so that nobody chose."""
        return hashlib.sha256(self.name.encode()).digest()[0] % 2 == 1

    def images(self, folder: Path) -> tuple[Tensor, Tensor]:
        """Test images with their labels; `folder` keeps those of the task of 100 classes."""
        text = f"cifar10-demo[random:{IMAGES}:0]"
        if self.classes == 100:
            text = f"npz:{write_pairs('cifar10-demo', IMAGES, 1, folder / 'test-pairs.npz').absolute()}"
        data = load_data(text)
        return data.read(data.rows[: PLANTED if self.fault else IMAGES])

    def victim(self, folder: Path) -> Victim:
        """The model, with its fault."""
        base = load_trained(self.model, self.family, self.classes)
        if not self.fault:
            return base
        x, _ = self.images(folder)
        smooth = load_trained("cnn-standard", "cnn", 10) if self.fault == "quantised-leak" else None
        return as_victim(plant(self.fault, base, smooth=smooth, images=x[:CALIBRATION]).eval(), x, self.name)


def weights_of(model: str) -> Path:
    return HERE / "weights" / f"{model}.safetensors"


def options_of(family: str, classes: int) -> FileOptions:
    """How the weights of a family are loaded."""
    arch = FAMILIES[family]
    return FileOptions(arch=arch.arch, arch_kwargs={**arch.kwargs, "num_classes": classes}, normalize="cifar10")


def load_trained(name: str, family: str, classes: int) -> Victim:
    return load_model(str(weights_of(name)), torch.device("cpu"), options_of(family, classes)).victim


def read_rows() -> list[RedTeamRow]:
    """All rows, trained models first."""
    trained = {each["name"]: _trained(each) for each in _read("models.yaml")}
    faults = _read("plants.yaml")
    return [
        *trained.values(),
        *(RedTeamRow(**{**trained[f["model"]].__dict__, "fault": f["plant"]}) for f in faults),
    ]


def _trained(entry: Mapping[str, str]) -> RedTeamRow:
    return RedTeamRow(entry["name"], entry["family"], entry["threat"], int(entry.get("classes", 10)))


def _read(name: str) -> list[Mapping[str, str]]:
    entries: list[Mapping[str, str]] = yaml.safe_load((HERE / name).read_text())
    return entries
