"""Diagnosis of attention softmaxes: whether they saturate or underflow, and whether that spoils input gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import torch
from torch import nn

from vitattack.attacks.aas.controls import read_scales
from vitattack.core.errors import UsageError, VitattackError
from vitattack.core.notebook import counting
from vitattack.core.progress import Counter
from vitattack.core.rng import SampleRng, seeded
from vitattack.core.runtime import numerics, resolve_device
from vitattack.core.shown import Shown
from vitattack.data import DataSet, match_labels, restrict_to_classes
from vitattack.diagnostics.input_gradients import GradientPanel
from vitattack.diagnostics.row_statistics import RowStatistics
from vitattack.evaluation.batch_runner import read_batch
from vitattack.evaluation.prepare import images_of, preprocessing
from vitattack.evaluation.provenance import provenance
from vitattack.evaluation.random_models import recognised, rows_to_compare
from vitattack.evaluation.setup import DEFAULT_MODEL, Setup
from vitattack.models.attention.attention_map import AttentionLayer, AttentionMap
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.attention.rescaled import Rescaled
from vitattack.models.attention.saturation import SATURATED_ROWS, UNDERFLOW_ROWS
from vitattack.models.attention.tap import AttentionTap, Seen
from vitattack.models.randomness import STEADY, Variation
from vitattack.models.victim import Victim, as_victim, check_module, frozen, model_digest
from vitattack.models.zoo.file_options import FileOptions
from vitattack.models.zoo.load import load_model

if TYPE_CHECKING:
    from vitattack.evaluation.setup import ImageData

Verdict = Literal["ok", "saturated", "underflow"]

# A model's gradient underflows if this share of score rows gets none, or the input gradient differs this much from fp64.
DEAD_ROWS, LOST_SIGNS, LOST_ENTRIES = 0.01, 0.05, 0.01
GRADIENT_IMAGES = 64
BATCH_SIZE = 16  # scores of all layers are held in double precision


class DiagnosisFields(TypedDict, total=False):
    """The fields of `Setup` that a diagnosis uses, as keyword arguments."""

    limit: int | None
    data_dir: str | Path | None
    transform: str | None
    options: FileOptions | None
    seed: int
    batch_size: int
    threads: int | None
    device: str


@dataclass(frozen=True)
class Block:
    """One attention softmax: its layer, statistics over its rows and per head, and its gap histogram."""

    layer: AttentionLayer
    summary: dict[str, Any]
    per_head: tuple[dict[str, Any], ...]
    histogram: tuple[int, ...]
    zero_dscores: float
    sampled: bool

    @property
    def verdict(self) -> Verdict:
        if self.summary["underflow"] > UNDERFLOW_ROWS:
            return "underflow"
        return "saturated" if self.summary["saturated"] > SATURATED_ROWS else "ok"

    def json(self) -> dict[str, Any]:
        return {
            "layer": self.layer.number,
            "name": self.layer.name,
            "block": self.layer.block,
            "heads": self.layer.heads,
            "fused": self.layer.fused,
            "temperature": self.layer.temperature,
            **self.summary,
            "zero_dscores": self.zero_dscores,
            "quantiles": "sampled" if self.sampled else "exact",
            "histogram": list(self.histogram),
            "per_head": list(self.per_head),
            "verdict": self.verdict,
        }


@dataclass(frozen=True, repr=False)
class Diagnosis(Shown):
    """The blocks of a model, its input gradients by precision, and the verdict."""

    TABLES = "vitattack.report.diagnosis:table"

    model: str
    data: str
    n: int
    blocks: tuple[Block, ...]
    ignored: tuple[tuple[str, str], ...]
    gradient: dict[str, Any]
    provenance: dict[str, Any]
    varies: Variation = STEADY  # what else than precision moves the answers
    coverage: str | None = None  # how many softmaxes are seen and how many are not, where some are not

    def __repr__(self) -> str:
        blocks = f"{len(self.flagged)} of {len(self.blocks)} attention softmaxes flagged"
        return f"Diagnosis({self.model}, {self.data}, n={self.n}, {self.verdict}, {blocks})"

    @property
    def is_random(self) -> bool:
        return self.varies.cause == "chance"

    @property
    def flagged(self) -> tuple[Block, ...]:
        return tuple(block for block in self.blocks if block.verdict != "ok")

    @property
    def verdict(self) -> Verdict:
        """The verdict on the gradients: `underflow` if fp32 loses them, `saturated` if it does not but blocks are flagged.

        For a model that cannot run in fp64 it rests on the gradients of the scores alone.
        """
        if self.gradient["dead_dscores"] > DEAD_ROWS or self.spoilt:
            return "underflow"
        return "saturated" if self.flagged else "ok"

    @property
    def spoilt(self) -> bool:
        """Whether the fp32 input gradient of the margin differs from fp64 so much that an attack would notice.

        Never of a random model: its gradients differ in any precision.
        """
        if self.is_random:
            return False
        margin = self.gradient["margin"]["fp32"]
        return margin is not None and bool(margin["sign_agreement"] < 1 - LOST_SIGNS or margin["lost"] > LOST_ENTRIES)

    def json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "model": self.model,
            "data": self.data,
            "n": self.n,
            "layers": [block.json() for block in self.blocks],
            "ignored": [{"name": name, "reason": reason} for name, reason in self.ignored],
            "gradient": self.gradient,
            "verdict": self.verdict,
            **({"coverage": self.coverage} if self.coverage else {}),
            **({"random": self.varies.gap} if self.is_random else {}),
            "provenance": self.provenance,
        }


@torch.inference_mode(False)
def diagnose(
    model: nn.Module | str = DEFAULT_MODEL,
    data: ImageData | None = None,
    *,
    setup: Setup | None = None,
    gradient_images: int = GRADIENT_IMAGES,
    scales: str | Path | None = None,
    watch: Counter | None = None,
    **fields: Unpack[DiagnosisFields],
) -> Diagnosis:
    """Statistics of every attention row over real images, and the input gradient in fp32, bf16 and fp64.

    `model` is any module from [0,1] pixels to logits, or a text such as "tiny-vit". Settings come as a `setup` or as
    keyword arguments; data default to those of the setup. The gradients are those of the first `gradient_images` images. Memory
    does not grow with the number of images. With `scales`, a file as for an evaluation, the victim is rescaled by the
    first set of them.
    """
    if gradient_images < 1:
        raise UsageError("gradient_images counts images: use at least 1")
    setup = setup or Setup(batch_size=BATCH_SIZE)
    setup = replace(setup, data=setup.data if data is None else data, **fields)
    place = _with_doubles(resolve_device(setup.device, model), setup.device, model)
    with numerics(setup.cores):
        if isinstance(model, str):
            loaded = load_model(model, place, setup.options or FileOptions())
            images = images_of(setup, preprocessing(setup.transform, loaded.victim))
            if loaded.victim.any_size:
                raise UsageError(
                    "a diagnosis takes images of one size: give --input-size 224, and --transform for folders"
                )
            victim = restrict_to_classes(match_labels(loaded.victim, loaded.labels, images), images.classes)
        else:
            check_module(model)
            images = images_of(setup, preprocessing(setup.transform))
            victim = as_victim(model, images.read(images.rows[:1])[0].to(place)).to(place)
        if scales is not None:
            factors = torch.tensor(read_scales(Path(scales))[0], device=place)
            victim = as_victim(
                Rescaled(victim, factors), images.read(images.rows[:1])[0].to(place), f"{victim.name} rescaled"
            )
        compared = read_batch(images, rows_to_compare(images), victim, place)[0]
        varies = recognised(victim, compared, setup.seed, setup.batch_size)
        noise = SampleRng(setup.seed, (0,)).child("diagnosis")
        with frozen(victim), seeded(noise), counting("diagnose", watch) as counter:
            statistics, panel, layers = _gather(victim, images, place, gradient_images, setup, counter)
    blocks = tuple(
        Block(
            layer,
            rows.summary(),
            tuple({**rows.summary(h), "zero_dscores": panel.zero_dscores(layer.number, h)} for h in range(layer.heads)),
            tuple(rows.histogram.sum(0).tolist()),
            panel.zero_dscores(layer.number),
            rows.sampled,
        )
        for layer, rows in zip(layers.layers, statistics, strict=True)
    )
    job = setup.job(
        model=victim.name,
        data=images.text,
        weights=model_digest(victim),
        pixels=images.digest(),
        device=place.type,
    )
    made_with = provenance(place, job, images.protocol)
    coverage = layers.coverage()
    return Diagnosis(
        victim.name, images.text, len(images), blocks, layers.ignored, panel.json(), made_with, varies, coverage
    )


def _gather(
    victim: Victim, images: DataSet, place: torch.device, gradients: int, setup: Setup, watch: Counter
) -> tuple[list[RowStatistics], GradientPanel, AttentionMap]:
    layers: AttentionMap | None = None
    statistics: list[RowStatistics] = []
    panel: GradientPanel | None = None
    done = 0

    def see(seen: Seen) -> None:
        z, masked = seen.scores(torch.float64), seen.masked()
        if bool(z.isnan().any()):
            raise VitattackError(
                f"'{seen.layer.name}' of '{victim.name}' has NaN scores: the weights are broken, fetch them again"
            )
        statistics[seen.layer.number].add(seen.by_head(z), None if masked is None else seen.by_head(masked))

    for rows in images.cut(setup.batch_size):
        x, y, _ = read_batch(images, rows, victim, place)
        if layers is None or panel is None:
            layers = attention_layers(victim, x)
            layers.require("there is no softmax to diagnose")
            statistics = [RowStatistics(layer.heads, setup.seed) for layer in layers.layers]
            panel = GradientPanel(victim, layers)
        with torch.no_grad(), AttentionTap(layers, observe=see):
            logits = victim(x)
        if not bool(torch.isfinite(logits).all()):
            raise VitattackError(f"model '{victim.name}' gives NaN for an image: the weights are broken")
        if panel.images < gradients:
            panel.add(x[: gradients - panel.images], y[: gradients - panel.images])
        done += len(rows)
        watch(done, len(images))
    assert layers is not None and panel is not None  # a data set holds at least one image
    return statistics, panel, layers


def _with_doubles(place: torch.device, asked: str, model: nn.Module | str) -> torch.device:
    if place.type != "mps":
        return place
    if asked == "auto" and isinstance(model, str):
        return torch.device("cpu")
    raise UsageError("mps has no float64, which the comparison needs: move the model to the CPU or use --device cpu")
