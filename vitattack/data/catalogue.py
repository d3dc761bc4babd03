"""The data sets known by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vitattack.core.errors import UsageError
from vitattack.data.formats import arrays, layouts
from vitattack.data.formats.row_sources import Source
from vitattack.data.imagenet import validation as imagenet
from vitattack.data.imagenet.classes import Classes, subset
from vitattack.data.kinds import EmbeddedSet, Entry, HubArrays, HubSet, LocalSet, Opened, ValidationSet, check_count
from vitattack.data.labels.imagenet import CATEGORIES, IMAGENET100, imagenet100, restricted_classes
from vitattack.data.labels.other_sets import CORRUPTIONS, EXTRA_CORRUPTIONS


def _severity(part: str, summary: str) -> tuple[str, int | None]:
    name, _, level = part.partition("/")
    if level and level not in tuple("12345"):
        text = f"{summary.lower().replace('cifar-', 'cifar')}/{name}"
        raise UsageError(f"severity '{level[:20]}' of {summary} is none: write {text}/1 to {text}/5")
    return name, int(level) if level else None


def _cifar_c(num_classes: int) -> Callable[[Path, str, str], Opened]:
    def opener(path: Path, part: str, transform: str) -> Opened:
        name, level = _severity(part, f"CIFAR-{num_classes}-C")
        return Opened(arrays.corrupted_cifar(path.parent, name, level, num_classes))

    return opener


def _imagenet_c(path: Path, part: str, transform: str) -> Opened:
    name, level = _severity(part, "ImageNet-C")
    if level is None:
        raise UsageError(f"ImageNet-C: '{name}' has five severities: write imagenet-c/{name}/1 to imagenet-c/{name}/5")
    return Opened(imagenet.from_place(path / str(level), transform))


def _only(kind: str, rows: int, name: str) -> Callable[[Path, str, str], Opened]:
    def opener(path: Path, part: str, transform: str) -> Opened:
        free = part == "unrestricted"
        source = layouts.synset_folders(path, transform, restricted_classes(kind), number=not free)
        check_count(len(source), rows, str(path))
        return Opened(source, None if free else subset(name, restricted_classes(kind)))

    return opener


def _counted(read: Callable[[Path, str], Source], rows: int) -> Callable[[Path, str, str], Opened]:
    def opener(path: Path, part: str, transform: str) -> Opened:
        source = read(path, transform)
        check_count(len(source), rows, str(path))
        return Opened(source)

    return opener


def _cue_conflict(path: Path, part: str, transform: str) -> Opened:
    source = layouts.CueConflict(path, transform)
    check_count(len(source), 1280, str(path))
    return Opened(source, Classes("cue-conflict", tuple(CATEGORIES.values())))


def _sketch(path: Path, transform: str) -> Source:
    return layouts.synset_folders(path, transform, None, number=False)


def _flowers(split: str, rows: int, summary: str) -> LocalSet:
    return LocalSet(
        summary,
        ("flowers-102", "oxford-flowers-102", "flowers102"),
        "robots.ox.ac.uk/~vgg/data/flowers/102 (102flowers.tgz, imagelabels.mat, setid.mat)",
        102,
        rows,
        _counted(lambda path, transform: layouts.flowers102(path, transform, split), rows),
    )


def _restricted(name: str, kind: str, rows: int, places: tuple[str, ...], origin: str, what: str) -> LocalSet:
    parts: dict[str, tuple[str, ...]] = {"restricted": (), "unrestricted": ()}
    return LocalSet(what, places, origin, 200, rows, _only(kind, rows, name), parts=parts, default="restricted")


CIFAR10, CIFAR100 = "uoft-cs/cifar10", "uoft-cs/cifar100"
EDM = "P2333/DM-Improves-AT"
_KINDS = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    "extra": EXTRA_CORRUPTIONS,
}
_V2 = {
    "matched-frequency": ("imagenetv2-matched-frequency-format-val",),
    "threshold-0.7": ("imagenetv2-threshold0.7-format-val",),
    "top-images": ("imagenetv2-top-images-format-val",),
}


def _cifar_c_set(num_classes: int, record: str) -> LocalSet:
    name = f"CIFAR-{num_classes}-C"
    files = {each: (f"{each}.npy",) for each in (*CORRUPTIONS, *EXTRA_CORRUPTIONS)}
    return LocalSet(
        f"{name}, {len(files)} corruptions in five severities, as {name.lower().replace('-', '', 1)}/fog/3",
        (name,),
        f"zenodo.org/records/{record} ({name}.tar)",
        num_classes,
        50_000,
        _cifar_c(num_classes),
        parts=files,
        severities=True,
        takes_transform=False,
    )


def _edm(classes: int, millions: int, files: tuple[str, ...]) -> HubArrays:
    what = f"{millions} million generated CIFAR-{classes} images (EDM, Wang et al. 2023)"
    return HubArrays(what, EDM, tuple(f"cifar{classes}/{file}.npz" for file in files), classes, millions * 1_000_000)


CATALOGUE: dict[str, Entry] = {
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
    "cifar10-c": _cifar_c_set(10, "2535967"),
    "cifar100-c": _cifar_c_set(100, "3555552"),
    "imagenet": ValidationSet("ImageNet-1k (ILSVRC-2012), the 50,000 validation images"),
    **{
        f"imagenet100-{name}": ValidationSet(
            f"ImageNet-100 ({name}), its 5,000 validation images; list sha256 {digest[:12]}",
            subset(f"imagenet100-{name}", imagenet100(name)),
        )
        for name, digest in IMAGENET100.items()
    },
    "imagenet-c": LocalSet(
        "ImageNet-C, 19 corruptions in five severities, as imagenet-c/fog/3",
        ("imagenet-c", "ImageNet-C"),
        "zenodo.org/records/2235448 (blur, digital, extra, noise, weather.tar)",
        1000,
        50_000,
        _imagenet_c,
        severities=True,
        parts={each: (each, f"{kind}/{each}") for kind, names in _KINDS.items() for each in names},
        transform="crop224",  # the images are 224 px as stored: scaling them changes the ranking of models
    ),
    "imagenet-a": _restricted(
        "imagenet-a",
        "a",
        7500,
        ("imagenet-a", "imagenet-a.tar"),
        "people.eecs.berkeley.edu/~hendrycks/imagenet-a.tar",
        "ImageNet-A, decided among its 200 classes; imagenet-a/unrestricted among all",
    ),
    "imagenet-r": _restricted(
        "imagenet-r",
        "r",
        30_000,
        ("imagenet-r", "imagenet-r.tar"),
        "people.eecs.berkeley.edu/~hendrycks/imagenet-r.tar",
        "ImageNet-R, decided among its 200 classes; imagenet-r/unrestricted among all",
    ),
    "imagenet-sketch": LocalSet(
        "ImageNet-Sketch, 50,889 drawings",
        ("imagenet-sketch", "ImageNet-Sketch", "sketch"),
        "github.com/HaohanWang/ImageNet-Sketch",
        1000,
        50_889,
        _counted(_sketch, 50_889),
    ),
    "imagenet-v2": LocalSet(
        "ImageNet-V2, 10,000 new images: /matched-frequency (default), /threshold-0.7, /top-images",
        ("imagenet-v2", "imagenetv2", "ImageNetV2"),
        "huggingface.co/datasets/vaishaal/ImageNetV2",
        1000,
        10_000,
        _counted(layouts.numbered_folders, 10_000),
        parts=_V2,
        default="matched-frequency",
    ),
    "cue-conflict": LocalSet(
        "Cue conflict (Geirhos et al. 2019): 1,280 images, the label is the shape among 16 categories",
        ("cue-conflict", "style-transfer-preprocessed-512"),
        "github.com/bethgelab/model-vs-human (cue-conflict.tar.gz)",
        16,
        1280,
        _cue_conflict,
    ),
    "caltech101": LocalSet(
        "Caltech-101, all 9,144 images of 101 classes and the background",
        ("101_ObjectCategories", "caltech-101/101_ObjectCategories", "caltech101"),
        "data.caltech.edu/records/mzrjq-6wc02 (101_ObjectCategories.tar.gz)",
        102,
        9144,
        _counted(layouts.caltech101, 9144),
    ),
    "flowers102": _flowers("tstid", 6149, "Oxford Flowers-102, the 6,149 test images"),
    "flowers102-train": _flowers("trnid", 1020, "Oxford Flowers-102, the 1,020 training images"),
    "flowers102-val": _flowers("valid", 1020, "Oxford Flowers-102, the 1,020 validation images"),
    "edm-cifar10-1m": _edm(10, 1, ("1m",)),
    "edm-cifar10-5m": _edm(10, 5, ("5m",)),
    "edm-cifar10-10m": _edm(10, 10, ("10m",)),
    "edm-cifar10-20m": _edm(10, 20, ("20m_part1", "20m_part2")),
    "edm-cifar10-50m": _edm(10, 50, tuple(f"50m_part{n}" for n in (1, 2, 3, 4))),
    "edm-cifar100-1m": _edm(100, 1, ("1m",)),
    "edm-cifar100-50m": _edm(100, 50, tuple(f"50m_part{n}" for n in (1, 2, 3, 4))),
}
