"""Parity with transformers: logits and labels of every architecture that classifies images, from folders it saved itself.

    python benchmarks/transformers_parity.py            all architectures, eager and sdpa
    python benchmarks/transformers_parity.py --only vit

Each model is small, with random weights and its classes in another order than the data's. A row compares, on 16 images,
the logits of transformers (its own image processor included) with those of the victim that vitattack loads from the folder.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from vitattack.data import load_data, match_labels
from vitattack.models.victim import frozen
from vitattack.models.zoo.file_options import FileOptions
from vitattack.models.zoo.load import load_model
from vitattack.text.class_lists import CIFAR10

TOLERANCE = 1e-5
SHUFFLED = [CIFAR10[(7 * number + 3) % 10] for number in range(10)]


@dataclass(frozen=True)
class Case:
    """A small model of one architecture."""

    cls: str
    config: dict[str, Any]
    px: int = 32
    processor: str = "ViTImageProcessor"
    processing: dict[str, Any] = field(default_factory=dict)
    kernels: tuple[str, ...] = ("eager", "sdpa")


PLAIN = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
VIT = {**PLAIN, "image_size": 32, "patch_size": 8}
SWIN_SIZES = {"image_size": 32, "embed_dim": 16, "depths": [1, 1]}
SWIN = {**SWIN_SIZES, "patch_size": 2, "num_heads": [2, 2], "window_size": 4}
STAGES = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]}
EAGER = ("eager",)
CLIP_MEAN = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
CROP = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}

CASES = {
    "vit": Case("ViTForImageClassification", VIT),
    "vit_msn": Case("ViTMSNForImageClassification", VIT),
    "deit": Case(
        "DeiTForImageClassification",
        VIT,
        processor="DeiTImageProcessor",
        processing=CROP | {"size": {"height": 32, "width": 32}},
    ),
    "deit_teacher": Case("DeiTForImageClassificationWithTeacher", VIT),
    "beit": Case("BeitForImageClassification", VIT, processor="BeitImageProcessor"),
    "data2vec": Case("Data2VecVisionForImageClassification", VIT, processor="BeitImageProcessor"),
    "dinov2": Case("Dinov2ForImageClassification", VIT, processor="BitImageProcessor", processing=CROP),
    "dinov2_registers": Case(
        "Dinov2WithRegistersForImageClassification", VIT, processor="BitImageProcessor", processing=CROP
    ),
    "ijepa": Case("IJepaForImageClassification", VIT),
    "swin": Case("SwinForImageClassification", SWIN),
    "swinv2": Case("Swinv2ForImageClassification", SWIN, kernels=EAGER),
    "donut_swin": Case("DonutSwinForImageClassification", SWIN, kernels=EAGER),
    "hiera": Case(
        "HieraForImageClassification",
        {
            **SWIN_SIZES,
            "image_size": [32, 32],
            "num_heads": [1, 2],
            "query_stride": [2, 2],
            "masked_unit_size": [4, 4],
            "masked_unit_attention": [True, False],
            "num_query_pool": 1,
        },
        processor="BitImageProcessor",
        processing=CROP,
        kernels=EAGER,
    ),
    "focalnet": Case(
        "FocalNetForImageClassification",
        {
            "image_size": 32,
            "embed_dim": 16,
            "depths": [1, 1],
            "hidden_sizes": [16, 32],
            "focal_levels": [2, 2],
            "focal_windows": [3, 3],
        },
        kernels=EAGER,
    ),
    "clip": Case(
        "CLIPForImageClassification",
        {
            "vision_config": {**VIT, "projection_dim": 16},
            "text_config": {**PLAIN, "vocab_size": 64},
            "projection_dim": 16,
        },
        processor="CLIPImageProcessor",
        processing=CROP | CLIP_MEAN,
    ),
    "siglip": Case(
        "SiglipForImageClassification",
        {"vision_config": VIT, "text_config": {**PLAIN, "vocab_size": 64}},
        processor="SiglipImageProcessor",
    ),
    "levit": Case(
        "LevitForImageClassification",
        {
            "image_size": 64,
            "hidden_sizes": [16, 24, 32],
            "num_attention_heads": [2, 3, 4],
            "depths": [1, 1, 1],
            "key_dim": [8, 8, 8],
            "attention_ratio": [2, 2, 2],
            "mlp_ratio": [2, 2, 2],
        },
        px=64,
        processor="LevitImageProcessor",
        processing={"size": {"shortest_edge": 64}, "crop_size": {"height": 64, "width": 64}},
        kernels=EAGER,
    ),
    "cvt": Case(
        "CvtForImageClassification",
        {"embed_dim": [16, 16, 32], "num_heads": [1, 1, 2], "depth": [1, 2, 3]},
        px=64,
        processor="ConvNextImageProcessor",
        processing={"size": {"shortest_edge": 64}, "crop_pct": 0.875},
        kernels=EAGER,
    ),
    "pvt": Case(
        "PvtForImageClassification",
        {
            "num_labels": 10,
            "image_size": 64,
            "hidden_sizes": [16, 16, 32, 32],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 1, 2, 2],
        },
        px=64,
        kernels=EAGER,
    ),
    "pvt_v2": Case(
        "PvtV2ForImageClassification",
        {"hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2]},
        px=64,
        kernels=EAGER,
    ),
    "segformer": Case(
        "SegformerForImageClassification",
        {"hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2]},
        px=64,
        kernels=EAGER,
    ),
    "dpt_poolformer": Case(
        "PoolFormerForImageClassification",
        {"hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1]},
        px=64,
        processor="PoolFormerImageProcessor",
        processing={"size": {"shortest_edge": 64}, "crop_size": {"height": 64, "width": 64}, "crop_pct": 0.9},
        kernels=EAGER,
    ),
    "mobilevit": Case(
        "MobileViTForImageClassification",
        {
            "image_size": 64,
            "hidden_sizes": [16, 24, 32],
            "neck_hidden_sizes": [8, 8, 16, 24, 24, 32, 48],
            "num_attention_heads": 2,
        },
        px=64,
        processor="MobileViTImageProcessor",
        processing={"size": {"shortest_edge": 64}, "crop_size": {"height": 64, "width": 64}},
        kernels=EAGER,
    ),
    "swiftformer": Case(
        "SwiftFormerForImageClassification",
        {"image_size": 64, "embed_dims": [16, 16, 32, 32], "depths": [1, 1, 1, 1]},
        px=64,
        kernels=EAGER,
    ),
    "efficientnet": Case(
        "EfficientNetForImageClassification",
        {"image_size": 64, "width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 320},
        px=64,
        processor="EfficientNetImageProcessor",
        processing={
            "size": {"height": 64, "width": 64},
            "rescale_offset": True,
            "rescale_factor": 1 / 127.5,
            "include_top": True,
        },
        kernels=EAGER,
    ),
    "perceiver": Case(
        "PerceiverForImageClassificationConvProcessing",
        {
            "num_latents": 8,
            "d_latents": 32,
            "num_self_attends_per_block": 1,
            "num_self_attention_heads": 2,
            "num_cross_attention_heads": 1,
        },
        px=64,
        kernels=EAGER,
    ),
    "metaclip_2": Case(
        "MetaClip2ForImageClassification",
        {"vision_config": VIT, "text_config": {**PLAIN, "vocab_size": 64, "eos_token_id": 2}},
        processor="CLIPImageProcessor",
        processing=CROP,
    ),
    "convnext": Case(
        "ConvNextForImageClassification",
        {"hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1]},
        px=64,
        processor="ConvNextImageProcessor",
        processing={"size": {"shortest_edge": 64}},
        kernels=EAGER,
    ),
    "resnet": Case("ResNetForImageClassification", STAGES, kernels=EAGER),
    "timm_wrapper": Case(
        "TimmWrapperForImageClassification", {"architecture": "test_vit"}, px=160, processor="", kernels=EAGER
    ),
}


def save(case: Case, folder: Path) -> Any:
    """Make the model of a case, save it with its image processor, and return it."""
    cls: Any = getattr(transformers, case.cls)
    torch.manual_seed(0)
    names = dict(enumerate(SHUFFLED))
    config = cls.config_class(**case.config, id2label=names, label2id={name: n for n, name in names.items()})
    model = cls(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(std=1.4 * (parameter[0].numel()) ** -0.5)
    with torch.no_grad():  # batch statistics of its own, so that signals neither vanish nor explode
        for _ in range(20):
            model.train()(torch.randn(8, 3, case.px, case.px))
    model.eval().save_pretrained(folder)
    if case.processor:
        square = {"height": case.px, "width": case.px}
        processor = getattr(transformers, case.processor)(**{"size": square, **case.processing})
        processor.save_pretrained(folder)
    return model


def reference(case: Case, folder: Path, images: Tensor, kernel: str) -> Tensor:
    """The logits of transformers on its own, classes in the order of the model."""
    cls: Any = getattr(transformers, case.cls)
    model = cls.from_pretrained(folder, attn_implementation=kernel).eval()
    arrays = list((images * 255).round().to(torch.uint8))
    if case.processor:
        processor = transformers.AutoImageProcessor.from_pretrained(folder)
        pixels = processor(arrays, return_tensors="pt", do_resize=False, do_center_crop=False)["pixel_values"]
    else:
        pixels = images
    with torch.no_grad():
        logits: Tensor = model(pixels).logits
    return logits


def difference(case: Case, kernel: str, images: Tensor, data: Any) -> tuple[float, bool, int]:
    """The largest difference as a share of the largest logit, whether labels agree after mapping, layers of attention."""
    from vitattack.models.attention.layer_detection import attention_layers

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save(case, folder)
        theirs = reference(case, folder, images, kernel)
        stated = {} if case.processor else {"normalize": "none"}
        options = FileOptions(arch_kwargs={"attn_implementation": kernel}, **stated)
        loaded = load_model(name, torch.device("cpu"), options)
        mapped = match_labels(loaded.victim, loaded.labels, data)
        with frozen(mapped), torch.no_grad():
            ours, answers = loaded.victim(images), mapped(images)
        named = [SHUFFLED[int(n)] for n in theirs.argmax(1)]
        same = [CIFAR10[int(n)] for n in answers.argmax(1)] == named
        with frozen(mapped):
            layers = len(attention_layers(mapped, images[:2]).layers)
        return float((ours - theirs).abs().max() / theirs.abs().max()), same, layers


def rows(only: str | None) -> Iterator[tuple[str, str, float, bool, int, float]]:
    data = load_data("cifar10-demo[:16]")
    x, _ = data.read(data.rows)
    for name, case in CASES.items():
        if only and only not in name:
            continue
        images = (torch.nn.functional.interpolate(x, size=case.px) * 255).round() / 255
        for kernel in case.kernels:
            began = time.perf_counter()
            try:
                worst, same, layers = difference(case, kernel, images, data)
            except Exception as error:  # noqa: BLE001  # a row that fails is a finding, the others go on
                print(f"{name} {kernel}: {type(error).__name__}: {str(error)[:300]}")
                worst, same, layers = float("inf"), False, 0
            yield name, kernel, worst, same, layers, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    wrong = 0
    print(f"transformers {transformers.__version__}, torch {torch.__version__}: 16 images, tolerance {TOLERANCE:g}")
    print(f"{'architecture':18s} {'kernel':6s} {'difference':>10s} {'labels':>7s} {'attention':>9s} {'seconds':>7s}")
    for name, kernel, worst, same, layers, seconds in rows(parser.parse_args().only):
        wrong += worst > TOLERANCE or not same
        print(
            f"{name:18s} {kernel:6s} {worst:10.1e} {'same' if same else 'DIFFER':>7s} {layers:9d} {seconds:7.1f}",
            flush=True,
        )
    print(f"{wrong} rows differ")


if __name__ == "__main__":
    main()
