"""The registry of data sets that can be named, and those that come with the package."""

from __future__ import annotations

from vitattack.core.registry import Registry
from vitattack.data import openers
from vitattack.data.entry import DataEntry
from vitattack.data.hub_sets import EmbeddedSet, HubArrays, HubSet
from vitattack.data.imagenet.classes import single_classes
from vitattack.data.imagenet.validation_set import ValidationSet
from vitattack.data.labels.imagenet import IMAGENET100, imagenet100
from vitattack.data.labels.other_sets import CORRUPTIONS, EXTRA_CORRUPTIONS
from vitattack.data.local_sets import LocalSet
from vitattack.data.sharded_sets import SHARDED_SETS

DATA_SETS: Registry[DataEntry] = Registry("data set", entry_point_group="vitattack.data")

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


def _cifar_c(num_classes: int, record: str) -> LocalSet:
    name = f"CIFAR-{num_classes}-C"
    files = {corruption: (f"{corruption}.npy",) for corruption in (*CORRUPTIONS, *EXTRA_CORRUPTIONS)}
    return LocalSet(
        f"{name}, {len(files)} corruptions in five severities, as {name.lower().replace('-', '', 1)}/fog/3",
        (name,),
        f"zenodo.org/records/{record} ({name}.tar)",
        num_classes,
        50_000,
        openers.cifar_c(num_classes),
        parts=files,
        severities=True,
        takes_transform=False,
        beside=("labels.npy",),
    )


def _all_of_imagenet_c(count: int, kinds: tuple[str, ...]) -> LocalSet:
    places = [(each, f"{kind}/{each}") for kind, names in _KINDS.items() for each in names if each in kinds]
    return LocalSet(
        f"ImageNet-C, {len(kinds)} corruptions in five severities at once: accuracy on it is acc-{count}",
        ("imagenet-c", "ImageNet-C"),
        "zenodo.org/records/2235448 (blur, digital, extra, noise, weather.tar)",
        1000,
        50_000 * count,
        openers.all_of_imagenet_c(places),
        of_imagenet=True,
        transform="crop224",
    )


def _edm(classes: int, millions: int, files: tuple[str, ...]) -> HubArrays:
    summary = f"{millions} million generated CIFAR-{classes} images (EDM, Wang et al. 2023)"
    paths = tuple(f"cifar{classes}/{file}.npz" for file in files)
    return HubArrays(summary, EDM, paths, classes, millions * 1_000_000)


def _flowers(split: str, rows: int, summary: str) -> LocalSet:
    return LocalSet(
        summary,
        ("flowers-102", "oxford-flowers-102", "flowers102"),
        "robots.ox.ac.uk/~vgg/data/flowers/102 (102flowers.tgz, imagelabels.mat, setid.mat)",
        102,
        rows,
        openers.flowers102(split, rows),
    )


def _restricted(name: str, kind: str, rows: int, origin: str, summary: str) -> LocalSet:
    return LocalSet(
        summary,
        (name, f"{name}.tar"),
        origin,
        200,
        rows,
        openers.imagenet_subset(name, kind, rows),
        parts={"restricted": (), "unrestricted": ()},
        default_part="restricted",
        of_imagenet=True,
    )


_BUILT_IN: dict[str, DataEntry] = {
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
    "cifar10-c": _cifar_c(10, "2535967"),
    "cifar100-c": _cifar_c(100, "3555552"),
    "imagenet": ValidationSet("ImageNet-1k (ILSVRC-2012), the 50,000 validation images"),
    **{
        f"imagenet100-{name}": ValidationSet(
            f"ImageNet-100 ({name}), its 5,000 validation images; list sha256 {digest[:12]}",
            single_classes(f"imagenet100-{name}", imagenet100(name)),
        )
        for name, digest in IMAGENET100.items()
    },
    "imagenet-c": LocalSet(
        "ImageNet-C, 19 corruptions in five severities, as imagenet-c/fog/3",
        ("imagenet-c", "ImageNet-C"),
        "zenodo.org/records/2235448 (blur, digital, extra, noise, weather.tar)",
        1000,
        50_000,
        openers.imagenet_c,
        severities=True,
        needs_severity=True,
        of_imagenet=True,
        parts={each: (each, f"{kind}/{each}") for kind, names in _KINDS.items() for each in names},
        transform="crop224",  # the images are 224 px as stored: scaling them changes the ranking of models
    ),
    "imagenet-c-75": _all_of_imagenet_c(75, CORRUPTIONS),
    "imagenet-c-95": _all_of_imagenet_c(95, (*CORRUPTIONS, *EXTRA_CORRUPTIONS)),
    "imagenet-a": _restricted(
        "imagenet-a",
        "a",
        7500,
        "people.eecs.berkeley.edu/~hendrycks/imagenet-a.tar",
        "ImageNet-A, decided among its 200 classes; imagenet-a/unrestricted among all",
    ),
    "imagenet-r": _restricted(
        "imagenet-r",
        "r",
        30_000,
        "people.eecs.berkeley.edu/~hendrycks/imagenet-r.tar",
        "ImageNet-R, decided among its 200 classes; imagenet-r/unrestricted among all",
    ),
    "imagenet-sketch": LocalSet(
        "ImageNet-Sketch, 50,889 drawings",
        ("imagenet-sketch", "ImageNet-Sketch", "sketch"),
        "github.com/HaohanWang/ImageNet-Sketch",
        1000,
        50_889,
        openers.imagenet_sketch(50_889),
        of_imagenet=True,
    ),
    "imagenet-v2": LocalSet(
        "ImageNet-V2, 10,000 new images: /matched-frequency (default), /threshold-0.7, /top-images",
        ("imagenet-v2", "imagenetv2", "ImageNetV2"),
        "huggingface.co/datasets/vaishaal/ImageNetV2",
        1000,
        10_000,
        openers.imagenet_v2(10_000),
        parts=_V2,
        default_part="matched-frequency",
        of_imagenet=True,
    ),
    "cue-conflict": LocalSet(
        "Cue conflict (Geirhos et al. 2019): 1,280 images, the label is the shape among 16 categories",
        ("cue-conflict", "style-transfer-preprocessed-512"),
        "github.com/bethgelab/model-vs-human (cue-conflict.tar.gz)",
        16,
        1280,
        openers.cue_conflict(1280),
        of_imagenet=True,
    ),
    "caltech101": LocalSet(
        "Caltech-101, all 9,144 images of 101 classes and the background",
        ("101_ObjectCategories", "caltech-101/101_ObjectCategories", "caltech101"),
        "data.caltech.edu/records/mzrjq-6wc02 (101_ObjectCategories.tar.gz)",
        102,
        9144,
        openers.caltech101(9144),
    ),
    "flowers102": _flowers("tstid", 6149, "Oxford Flowers-102, the 6,149 test images"),
    "flowers102-train": _flowers("trnid", 1020, "Oxford Flowers-102, the 1,020 training images"),
    "flowers102-val": _flowers("valid", 1020, "Oxford Flowers-102, the 1,020 validation images"),
    **SHARDED_SETS,
    "edm-cifar10-1m": _edm(10, 1, ("1m",)),
    "edm-cifar10-5m": _edm(10, 5, ("5m",)),
    "edm-cifar10-10m": _edm(10, 10, ("10m",)),
    "edm-cifar10-20m": _edm(10, 20, ("20m_part1", "20m_part2")),
    "edm-cifar10-50m": _edm(10, 50, tuple(f"50m_part{n}" for n in (1, 2, 3, 4))),
    "edm-cifar100-1m": _edm(100, 1, ("1m",)),
    "edm-cifar100-50m": _edm(100, 50, tuple(f"50m_part{n}" for n in (1, 2, 3, 4))),
}

for _name, _entry in _BUILT_IN.items():
    DATA_SETS.add(_name, _entry)
