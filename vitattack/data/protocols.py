"""Evaluation protocols by name: the images of a data set, their transform, and the publication that defines them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from vitattack.data.labels.imagenet import VALIDATION_IMAGES, official_list, robustbench_ids
from vitattack.data.rows import digest_rows, draw_rows
from vitattack.data.sharded_sets import SHARDED_SETS, robustvlm_draw

if TYPE_CHECKING:
    from vitattack.data.entry import Source


@dataclass(frozen=True)
class EvaluationProtocol:
    """Images and preprocessing as published.

    `transform` None means the model's own; {px} in it is the model's input size. Where the images depend on how the set
    is cut into files, `draw` takes their sizes.
    """

    summary: str
    data: str
    images: int
    choose: Callable[[], tuple[int, ...]] = field(repr=False)
    selection: str
    published_ids: bool
    transform: str | None
    threat: str
    source: str
    draw: Callable[[Sequence[int]], tuple[int, ...]] | None = field(default=None, repr=False)

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """The rows of the data set, in the order of the published list."""
        return self.choose()

    @cached_property
    def list_sha256(self) -> str:
        """The hash of the images in the notation of the published lists."""
        return hashlib.sha256(official_list(tuple(row + 1 for row in self.rows)).encode()).hexdigest()

    def rows_of(self, source: Source) -> tuple[int, ...]:
        """The rows of an opened set, in the order of the published list."""
        return self.draw(getattr(source, "shards", (len(source),))) if self.draw else self.rows

    def record(self, rows: tuple[int, ...] | None = None) -> dict[str, Any]:
        """The entries of a result that describe the protocol with its rows, whatever part of it was evaluated."""
        drawn = digest_rows(rows) if rows is not None else None
        return {
            "image_list": self.selection,
            "image_list_sha256": drawn if self.draw else self.list_sha256,
            "image_list_published": self.published_ids,
            "preprocessing": self.transform or "the model's own",
            "threat": self.threat,
            "source": self.source,
        }


def _random_1000() -> tuple[int, ...]:
    return draw_rows(1000, 0, VALIDATION_IMAGES)


def _zero_shot(name: str) -> EvaluationProtocol:
    """One of the 13 data sets over which RobustVLM averages."""
    entry = SHARDED_SETS[f"wds-{name}"]
    return EvaluationProtocol(
        f"1,000 test images of {entry.summary.partition(',')[0]}, one of RobustVLM's 13 zero-shot sets",
        f"wds-{name}",
        1000,
        lambda: (),
        "the first 1,000 of RobustVLM's shuffle with seed 0, which depends on the sizes of the tars",
        True,
        None if entry.px else "bicubic{px}crop{px}",
        "linf:2/255 and linf:4/255, APGD on cross-entropy" + (", and on targeted DLR" if entry.num_classes > 2 else ""),
        "Schlarmann et al. 2024, CLIP_benchmark in RobustVLM 7de10ee, batches of 50, four workers",
        robustvlm_draw,
    )


OUR_DRAW = "random:1000:0 of the validation set: the list of the paper is not public"
PROTOCOLS = {
    "robustbench-imagenet-5k": EvaluationProtocol(
        "RobustBench's 5,000 ImageNet validation images, each model with its own preprocessing",
        "imagenet",
        5000,
        lambda: tuple(number - 1 for number in robustbench_ids()),
        "RobustBench's list, in its order",
        True,
        None,
        "linf:4/255",
        "RobustBench 1.1.1, helper_files/imagenet_test_image_ids.txt (MIT); Croce et al. 2021",
    ),
    "robustvlm-imagenet-5k": EvaluationProtocol(
        "RobustBench's 5,000 ImageNet validation images as CLIP takes them, bicubic 224",
        "imagenet",
        5000,
        lambda: tuple(number - 1 for number in robustbench_ids()),
        "RobustBench's list, in its order",
        True,
        "bicubic224crop224",
        "linf:2/255 and linf:4/255, APGD on cross-entropy and targeted DLR",
        "Schlarmann et al. 2024, CLIP_eval/clip_robustbench.py of RobustVLM 7de10ee",
    ),
    "ares-1k": EvaluationProtocol(
        "1,000 random ImageNet validation images, bilinear 256 to 224",
        "imagenet",
        1000,
        _random_1000,
        OUR_DRAW,
        False,
        "bilinear256crop224",
        "linf:4/255",
        "Liu et al. 2023; preprocessing as run_attack.py of ARES 2.0 has it (crop 0.875, bilinear)",
    ),
    "bhojanapalli-1k": EvaluationProtocol(
        "1,000 ImageNet validation images, resized to the model's input without crop, one grey level",
        "imagenet",
        1000,
        _random_1000,
        OUR_DRAW,
        False,
        "resize{px}x{px}",
        "linf:1/255",
        "Bhojanapalli et al. 2021, section 3.6 and appendix A; their resize filter is not stated, ours is bilinear",
    ),
    **{f"clip-zeroshot-13/{name.removeprefix('wds-')}": _zero_shot(name.removeprefix("wds-")) for name in SHARDED_SETS},
}
