"""Preparation of an evaluation: its victim and images, opened and checked against each other."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vitattack import data as data_sets
from vitattack.attacks.catalogue import ATTACKS
from vitattack.core.errors import UsageError
from vitattack.core.progress import stage
from vitattack.core.runtime import resolve_device
from vitattack.data import DataSet
from vitattack.data.image_sizes import in_order_of_size, of_one_size
from vitattack.data.transform import Preprocessing
from vitattack.evaluation.batch_runner import read_batch
from vitattack.evaluation.files_read import image_files, model_files, perceptual_files
from vitattack.evaluation.reuse import unhashed
from vitattack.evaluation.setup import Setup
from vitattack.models.digest import Fingerprint, fingerprint
from vitattack.models.victim import Victim, as_victim, check_sizes, failing_on
from vitattack.models.zoo.entry import ZooEntry
from vitattack.models.zoo.file_options import FileOptions
from vitattack.models.zoo.load import load_model
from vitattack.models.zoo.loaded import LoadedModel
from vitattack.models.zoo.names import check_model_name
from vitattack.records import stats
from vitattack.records.job import Job

if TYPE_CHECKING:
    from vitattack.evaluation.setup import ImageData


@dataclass(frozen=True)
class Prepared:
    """A victim on its device with the images it is evaluated on."""

    setup: Setup
    device: torch.device
    loaded: LoadedModel
    victim: Victim
    images: DataSet

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """The victim's identity in keys of jobs."""
        with stage("hashing the model"):
            return fingerprint(self.victim)

    @cached_property
    def digests(self) -> tuple[str, str]:
        """Digests of the victim and of the images."""
        with stage("hashing the images"):
            return self.fingerprint.digest, self.images.digest()

    @property
    def by_name(self) -> bool:
        """Whether the model was loaded from its name, and not given as a module."""
        return bool(self.loaded.record["source"] != "module")

    @property
    def model_record(self) -> dict[str, Any]:
        """Origin of the model, and what of it has no digest."""
        return self.loaded.sized_record | unhashed(self.fingerprint.unknown)

    def job(
        self,
        attack: str = "",
        threat: str = "",
        calibration: str = "",
        sources: tuple[str, ...] = (),
        settings: str = "",
    ) -> Job:
        """The job of an attack on this victim; `sources` are digests of other models that the attack queries."""
        weights, pixels = self.digests
        return self.setup.job(
            model=self.victim.name,
            data=self.images.text,
            weights=" ".join([weights, *sources]),
            pixels=pixels,
            device=self.device.type,
            attack=attack,
            threat=threat,
            calibration=calibration,
            settings=settings,
        )

    def calibration(self, *, required: bool) -> DataSet | None:
        """Calibration images for attacks that learn."""
        how = preprocessing(self.setup.transform, self.victim)
        return calibration_images(self.setup.calibration, self.images, self.setup.data_folder, how, required=required)

    def read(self, images: DataSet | None) -> tuple[Tensor, Tensor]:
        """All images of a data set with their labels, on the device of the victim; empty tensors for None."""
        if images is None:
            return torch.empty(0), torch.empty(0)
        return read_batch(images, images.rows, self.victim, self.device)[:2]

    def files(self, model: str, calibration: DataSet | None, *, perceptual: bool) -> tuple[Path, ...] | None:
        """Every file that the numbers depend on; None if they cannot be listed."""
        parts = [model_files(self.loaded, model)]
        for images, asked in ((self.images, self.setup.data), (calibration, self.setup.calibration)):
            if images is not None:
                text = images.text if asked is None else asked
                parts.append(image_files(images, text, self.setup.data_folder) if isinstance(text, str) else None)
        parts += [perceptual_files()] if perceptual else []
        known = [part for part in parts if part is not None]
        return tuple(path for part in known for path in part) if len(known) == len(parts) else None

    def with_images(self, images: DataSet, setup: Setup | None = None) -> Prepared:
        """The same victim on other images of the same classes, not hashed again."""
        other = replace(self, images=images, setup=setup or self.setup)
        other.__dict__["fingerprint"] = self.fingerprint
        return other

    @property
    def expected_clean(self) -> stats.Accuracy | None:
        """The clean accuracy reported for this model on these data."""
        return expected_clean(self.loaded, self.images)


def prepare(model: nn.Module | str, setup: Setup, device: torch.device) -> Prepared:
    """Load the model and open the images at its input size."""
    if isinstance(model, str):
        check_model_name(model, setup.options or FileOptions(), attacks=ATTACKS)
        with stage("opening the model"):
            loaded = load_model(model, device, setup.options or FileOptions())
        with stage("opening the images"):
            images = images_of(setup, preprocessing(setup.transform, loaded.victim))
    else:
        images = images_of(setup, preprocessing(setup.transform))
        home = resolve_device("auto", model)
        if device.type != home.type:
            raise UsageError(f"the model is on {home}: call .to('{device}') first, or drop the device")
        loaded = LoadedModel(_from_python(model, images, home), None, {"source": "module"})
    if loaded.victim.any_size:
        with stage("reading the sizes of the images"):
            images = in_order_of_size(images)
            check_sizes(loaded.victim, sorted(set(images.sizes.values())) if images.sizes else ())
    victim = data_sets.match_labels(loaded.victim, loaded.labels, images)
    victim = data_sets.restrict_to_classes(victim, images.classes)
    if images.num_classes is not None and images.num_classes != victim.num_classes:
        raise UsageError(
            f"'{victim.name}' has {victim.num_classes} classes, '{images.text}' has {images.num_classes}: "
            "choose data the model was trained for"
        )
    data_sets.remember_classes(victim, images)
    return Prepared(setup, device, loaded, victim, images)


def _from_python(model: nn.Module, images: DataSet, home: torch.device) -> Victim:
    """A module as a victim: of images of several sizes if these differ, unless it is one that says what it takes."""
    first, _ = images.read(images.rows[:1])
    sizes = None if isinstance(model, Victim) else in_order_of_size(images).sizes
    with failing_on((first.shape[-2], first.shape[-1]), type(model).__name__) if sizes else nullcontext():
        victim = as_victim(model, first.to(home)).to(home)
    if sizes:
        victim.any_size = True
    return victim


def preprocessing(transform: str | None, victim: Victim | None = None) -> Preprocessing:
    """The requested transform, and the one the model was trained with."""
    if victim is None:
        return Preprocessing(transform)
    if victim.any_size:  # images keep their sizes
        return Preprocessing(transform, channels=victim.channels)
    side = victim.input_size if victim.input_height is None else None  # sets are scaled to squares only
    return Preprocessing(transform, victim.transform, side, victim.channels)


def images_of(setup: Setup, how: Preprocessing = Preprocessing()) -> DataSet:
    """The images of a setup, preprocessed for a model."""
    return open_images(setup.data, setup.limit, setup.data_folder, how)


def open_images(
    data: ImageData,
    limit: int | None,
    data_dir: Path | None,
    how: Preprocessing = Preprocessing(),
) -> DataSet:
    """Images by name or from Python; without a requested transform the set's own applies, else the model's."""
    if isinstance(data, str):
        named = data_sets.load_data(
            data, limit=limit, data_dir=data_dir, transform=how.given, model_transform=how.model, px=how.px
        )
        return named.with_channels(how.channels)
    images = data if isinstance(data, DataSet) else data_sets.from_python(data, limit)
    return images if limit is None else replace(images, rows=images.rows[:limit])


def calibration_images(
    given: ImageData | None,
    evaluated: DataSet,
    data_dir: Path | None,
    how: Preprocessing = Preprocessing(),
    *,
    required: bool = True,
) -> DataSet | None:
    """Calibration images, never the evaluated ones: given, embedded, or unused rows of the data set."""
    if given is None and evaluated.text.partition("[")[0] in ("cifar10", "cifar10-demo"):
        given = "cifar10-calib"
    if given is not None:
        chosen = open_images(given, None, data_dir, replace(how, given=None))
        if evaluated.sizes is not None:
            chosen = of_one_size(chosen)
        if _overlap(chosen, evaluated):
            raise UsageError("calibration images are among the evaluated ones: give others, or rows of the rest")
        return chosen
    spare = evaluated.spare(128)
    if not spare and not required:
        return None
    if not spare:
        raise UsageError("this attack learns from other images than the evaluated ones: give --calibration DATA")
    left = replace(evaluated, rows=spare, text=f"{evaluated.text} (rows left over)")
    return left if evaluated.sizes is None else of_one_size(left)


def _overlap(one: DataSet, two: DataSet) -> bool:
    """Whether two data sets share an image, by set and row, and for small images by pixels."""
    if one.set_name == two.set_name:
        return bool(set(one.rows) & set(two.rows))
    if max(len(one), len(two)) > 12_000 or any(d.read(d.rows[:1])[0].numel() > 3 * 64 * 64 for d in (one, two)):
        return False  # too much to read for a check; differently named sets are assumed to be disjoint
    pixels: list[set[bytes]] = [
        {image.numpy().tobytes() for rows in d.cut(256) for image in d.read(rows)[0].cpu()} for d in (one, two)
    ]
    return bool(pixels[0] & pixels[1])


def expected_clean(loaded: LoadedModel, images: DataSet) -> stats.Accuracy | None:
    """The clean accuracy reported by the model's entry, if the images are of the data set it refers to."""
    entry = loaded.entry
    if entry is None or images.set_name.removesuffix("-demo") != entry.dataset:
        return None
    return reported_clean(entry)


def reported_clean(entry: ZooEntry) -> stats.Accuracy | None:
    """The clean accuracy reported by an entry, as a share of its n images."""
    reported = next((r for r in entry.reported if r.metric == "clean"), None)
    if reported is None or reported.n is None:
        return None
    return stats.share(round(reported.value / 100 * reported.n), reported.n)
