"""Settings of an evaluation: one frozen value, checked once, and the only maker of jobs.

Nothing heavy is imported, so that a finished run can be found by its settings without torch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.core.runtime import usable_cores
from vitattack.records.job import Job
from vitattack.records.next_command import Given
from vitattack.text.validate import check_seed

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor
    from torch.utils.data import DataLoader, Dataset

    from vitattack.data import DataSet
    from vitattack.models.zoo.file_options import FileOptions

    # A name, a data set of ours, images in [0,1] with labels as tensors or arrays, or a torch data set or loader of such.
    Pair = tuple[Tensor, Tensor] | tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
    ImageData = str | DataSet | Pair | Dataset[Any] | DataLoader[Any]

DEFAULT_MODEL, DEFAULT_ATTACK, DEFAULT_THREAT, DEFAULT_DATA = "tiny-vit", "auto", "linf:8/255", "cifar10-demo"

MAX_SHARDS = 4096  # each is a file, and the one that ends last reads them all

Precision = Literal["fp32", "bf16-search"]


class SetupFields(TypedDict, total=False):
    """The fields of `Setup` as keyword arguments."""

    data: ImageData
    limit: int | None
    calibration: ImageData | None
    data_dir: str | Path | None
    transform: str | None
    options: FileOptions | None
    seed: int
    batch_size: int
    precision: Precision
    threads: int | None
    jobs: int | None
    device: str
    out: str | Path | None
    fresh: bool
    shard: tuple[int, int]
    save_adv: bool
    save_png: bool
    certificate: bool
    check: bool


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Images, numerics, machine and store of an evaluation; model, attacks and threat are named beside it."""

    data: ImageData = DEFAULT_DATA
    limit: int | None = None  # only the first images
    calibration: ImageData | None = None  # images for attacks that learn from some
    data_dir: str | Path | None = None
    transform: str | None = None  # of image files; None for that of the data set, else the model's
    options: FileOptions | None = None  # facts about a checkpoint file
    seed: int = 0
    batch_size: int = 64
    precision: Precision = "fp32"
    threads: int | None = None  # of each process; None for all usable cores, shared by the processes
    jobs: int | None = None  # processes; None lets a short measurement decide, for models by name
    device: str = "auto"
    out: str | Path | None = None  # folder of the store; None to keep nothing
    fresh: bool = False  # delete what the store holds of these jobs
    shard: tuple[int, int] = (0, 1)  # part k of n
    save_adv: bool = False  # keep the candidates beside the records; they are no part of the job
    save_png: bool = False  # and as images of 8 bits
    certificate: bool = True  # results of `auto` say how many planted examples it finds
    check: bool = False  # and carry the outcome of `check`

    def __post_init__(self) -> None:
        number, count = self.shard
        if self.batch_size < 1:
            raise UsageError(f"batch size {self.batch_size} holds no image: use at least 1")
        if self.threads is not None and not 1 <= self.threads <= 1024:
            raise UsageError(f"{self.threads} threads are too few or too many: use 1 to 1024")
        if self.jobs is not None and not 1 <= self.jobs <= 1024:
            raise UsageError(f"{self.jobs} jobs are too few or too many: use 1 to 1024")
        check_seed(self.seed)
        if not 0 <= number < count:
            raise UsageError(f"shard {number}/{count} does not exist: write 0/{max(count, 1)} for the first")
        if count > MAX_SHARDS:
            raise UsageError(f"{count} shards are too many: cut the run into at most {MAX_SHARDS}")
        if self.keeps_examples and self.out is None:
            raise UsageError("adversarial examples are kept beside the records of a run: give out, the folder of runs")
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"limit {self.limit} leaves no image: use at least 1")
        if self.precision not in get_args(Precision):
            raise UsageError(did_you_mean("precision", self.precision, get_args(Precision)))
        if self.transform is not None:
            self._check_transform()

    def _check_transform(self) -> None:
        from vitattack.data import takes_transform

        if not (isinstance(self.data, str) and takes_transform(self.data)):
            raise UsageError(
                "a transform is for folder: data and sets of image files, others are used as they are: drop it"
            )

    @property
    def cores(self) -> int:
        """CPU threads of the run: as requested, else all that this process may use."""
        return usable_cores() if self.threads is None else self.threads

    @property
    def keeps_examples(self) -> bool:
        """Whether candidates are kept: images of them are made from the exact ones."""
        return self.save_adv or self.save_png

    def given(self, model: object) -> Given:
        """How the user gave the model and the images, for the commands that doubts name."""
        folder = () if self.data_dir is None else ("--data-dir", str(self.data_dir))
        transform = () if self.transform is None else ("--transform", self.transform)
        options = () if self.options is None else self.options.words
        named = model if isinstance(model, str) else None
        return Given(named, isinstance(self.data, str), (*options, *folder, *transform))

    @property
    def data_folder(self) -> Path | None:
        return Path(self.data_dir) if self.data_dir is not None else None

    @contextmanager
    def store(self) -> Iterator[Path]:
        """The folder of the store; a temporary one if nothing is to be kept."""
        if self.out is not None:
            yield Path(self.out)
            return
        with tempfile.TemporaryDirectory(prefix="vitattack-") as folder:
            yield Path(folder)

    def job(
        self,
        *,
        model: str,
        data: str,
        weights: str,
        pixels: str,
        device: str,
        attack: str = "",
        threat: str = "",
        calibration: str = "",
        settings: str = "",
    ) -> Job:
        """The job of one attack on one model, with all cores in one process.

        Texts are canonical, `device` is the type of the resolved device.
        """
        return Job(
            model=model,
            attack=attack,
            threat=threat,
            data=data,
            weights=weights,
            pixels=pixels,
            calibration=calibration,
            seed=self.seed,
            batch_size=self.batch_size,
            precision=self.precision,
            threads=self.cores,
            device=device,
            settings=settings,
        )
