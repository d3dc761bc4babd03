"""Evaluation protocols by name: which images of which set, through which transform, and who says so."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from vitattack.data.labels.imagenet import VALIDATION_IMAGES, official_list, robustbench_ids
from vitattack.data.rows import draw


@dataclass(frozen=True)
class Protocol:
    """`transform` None means the model's own; {px} in it is the model's input size."""

    summary: str
    data: str
    chosen: Callable[[], tuple[int, ...]] = field(repr=False)
    selection: str
    published_ids: bool
    transform: str | None
    threat: str
    source: str

    @cached_property
    def rows(self) -> tuple[int, ...]:
        return self.chosen()

    @cached_property
    def list_sha256(self) -> str:
        """Of the images in the notation of the published lists."""
        return hashlib.sha256(official_list(tuple(row + 1 for row in self.rows)).encode()).hexdigest()

    def record(self) -> dict[str, Any]:
        """What a result says of the protocol, whatever was then evaluated of it."""
        return {
            "image_list": self.selection,
            "image_list_sha256": self.list_sha256,
            "image_list_published": self.published_ids,
            "preprocessing": self.transform or "the model's own",
            "threat": self.threat,
            "source": self.source,
        }


def _drawn() -> tuple[int, ...]:
    return draw(1000, 0, VALIDATION_IMAGES)


OURS = "random:1000:0 of the validation set: the list of the paper is not public"
PROTOCOLS = {
    "robustbench-imagenet-5k": Protocol(
        "RobustBench's 5,000 ImageNet validation images, each model with its own preprocessing",
        "imagenet",
        lambda: tuple(number - 1 for number in robustbench_ids()),
        "RobustBench's list, in its order",
        True,
        None,
        "linf:4/255",
        "RobustBench 1.1.1, helper_files/imagenet_test_image_ids.txt (MIT); Croce et al. 2021",
    ),
    "ares-1k": Protocol(
        "1,000 random ImageNet validation images, bilinear 256 to 224",
        "imagenet",
        _drawn,
        OURS,
        False,
        "bilinear256crop224",
        "linf:4/255",
        "Liu et al. 2023; preprocessing as run_attack.py of ARES 2.0 has it (crop 0.875, bilinear)",
    ),
    "bhojanapalli-1k": Protocol(
        "1,000 ImageNet validation images, resized to the model's input without crop, one grey level",
        "imagenet",
        _drawn,
        OURS,
        False,
        "resize{px}x{px}",
        "linf:1/255",
        "Bhojanapalli et al. 2021, section 3.6 and appendix A; their resize filter is not stated, ours is bilinear",
    ),
}
