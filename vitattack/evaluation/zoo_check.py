"""Check of a zoo model: hash of its file, strict loading, and clean accuracy on a few images."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from vitattack.attacks.losses.base import is_correct
from vitattack.core import files
from vitattack.core.runtime import numerics, resolve_device, usable_cores
from vitattack.data import restrict_to_classes
from vitattack.data.catalogue import DATA_SETS
from vitattack.evaluation.batch_runner import read_batch
from vitattack.evaluation.prepare import open_images, preprocessing, reported_clean
from vitattack.models.victim import frozen
from vitattack.models.weights import cache
from vitattack.models.weights.fetch import fetch_file
from vitattack.models.zoo.catalogue import zoo_entry
from vitattack.models.zoo.entry import ZooEntry, weights_to_fetch
from vitattack.models.zoo.file_options import FileOptions
from vitattack.models.zoo.load import load_model
from vitattack.models.zoo.loaded import LoadedModel
from vitattack.records import stats

SHIPPED = {"cifar10": "cifar10-demo"}  # images that ship with the package, by data set


@dataclass(frozen=True)
class ZooCheck:
    """Outcome of a check; `fits` is None without images, or without a reported number to compare with."""

    model: str
    file: str
    sha256: str
    hash_from: str
    parameters: int
    data: str | None
    clean: stats.Accuracy | None
    reported: stats.Accuracy | None
    fits: bool | None

    def json(self) -> dict[str, Any]:
        accuracies = {"clean": self.clean, "reported": self.reported}
        plain = {name: accuracy and accuracy._asdict() for name, accuracy in accuracies.items()}
        return {"schema": 1, **asdict(self), **plain}


def check_zoo_model(
    name: str,
    *,
    data: str | None = None,
    limit: int = 200,
    data_dir: str | Path | None = None,
    batch_size: int = 64,
    device: str = "auto",
    threads: int | None = None,
    unsafe_pickle: bool = False,
) -> ZooCheck:
    """Check that the weights of an entry are the right ones, as far as a hash and a few images can tell."""
    entry = zoo_entry(name)
    weights = weights_to_fetch(entry)
    path = fetch_file(weights, name=name, unsafe=unsafe_pickle)
    wanted, who = cache.expected_sha256(weights, name)
    place = resolve_device(device, name)
    with numerics(usable_cores() if threads is None else threads):
        loaded = load_model(name, place, FileOptions(unsafe_pickle=unsafe_pickle))
        folder = Path(data_dir) if data_dir else None
        text = data or _at_hand(entry, folder)
        if text is not None and not text.endswith("]"):
            text = f"{text}[random:{limit}:0]"  # the first images of a folder are of one class
        clean = None if text is None else _clean(loaded, text, folder, batch_size, place)
    reported = reported_clean(entry)
    return ZooCheck(
        model=name,
        file=str(path),
        sha256=wanted or files.file_sha256(path),
        hash_from=who,
        parameters=sum(p.numel() for p in loaded.victim.parameters()),
        data=text,
        clean=clean,
        reported=reported,
        fits=None if clean is None or reported is None else not stats.differ(clean, reported),
    )


def _at_hand(entry: ZooEntry, data_dir: Path | None) -> str | None:
    """The name of images of the entry's data set that need no download."""
    if entry.dataset in SHIPPED:
        return SHIPPED[entry.dataset]
    known = entry.dataset in DATA_SETS and DATA_SETS[entry.dataset].is_at_hand(data_dir)
    return entry.dataset if known else None


def _clean(
    loaded: LoadedModel, text: str, data_dir: Path | None, batch_size: int, place: torch.device
) -> stats.Accuracy:
    samples = open_images(text, None, data_dir, preprocessing(None, loaded.victim))
    victim = restrict_to_classes(loaded.victim, samples.classes)
    correct = 0
    with frozen(victim), torch.no_grad():
        for start in range(0, len(samples.rows), batch_size):
            x, y, _ = read_batch(samples, samples.rows[start : start + batch_size], victim, place)
            correct += int(is_correct(victim(x), y).sum())
    return stats.share(correct, len(samples.rows))
