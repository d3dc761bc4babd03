"""Does reading ONNX through onnx2torch hold up? Logits, gradients and attention of small models, exported and read back.

pip install onnx onnxscript onnx2torch
python benchmarks/onnx_converter.py
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.attention.rescaled import Rescaled
from vitattack.models.victim import as_victim, frozen


class OwnAttention(nn.Module):
    """One block around nn.MultiheadAttention."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, 32, 8, 8), nn.Linear(32, 10)
        self.attention = nn.MultiheadAttention(32, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        logits: Tensor = self.head((x + self.attention(x, x, x, need_weights=False)[0]).mean(1))
        return logits


class Logits(nn.Module):
    """A classifier of transformers, from pixels to logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x).logits
        return logits


def models() -> Iterator[tuple[str, nn.Module]]:
    sized: dict[str, Any] = {"img_size": 32, "num_classes": 10}
    plain: dict[str, Any] = {"patch_size": 8, "depth": 2, "embed_dim": 32, "num_heads": 2}
    yield "timm ViT", timm.create_model("vit_tiny_patch16_224", **sized, **plain)
    swin: dict[str, Any] = {"window_size": 4, "embed_dim": 16, "depths": (1, 2), "num_heads": (1, 2)}
    yield "timm Swin", timm.create_model("swin_tiny_patch4_window7_224", **sized, **swin)
    yield "nn.MultiheadAttention", OwnAttention()
    from transformers import ViTConfig, ViTForImageClassification

    small: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    }
    yield "transformers ViT", Logits(ViTForImageClassification(ViTConfig(**small, image_size=32, patch_size=8)))
    yield "timm ResNet-18", timm.create_model("resnet18", num_classes=10)


def export(model: nn.Module, x: Tensor, file: Path, *, dynamo: bool) -> None:
    """Export for any number of images, by torch's present exporter or by the one that traces."""
    if dynamo:
        shapes = ({0: torch.export.Dim("images")},)
        torch.onnx.export(model, (x,), file, dynamo=True, external_data=False, dynamic_shapes=shapes, verbose=False)
    else:
        how: dict[str, Any] = {"dynamic_axes": {"x": {0: "images"}}, "input_names": ["x"], "opset_version": 17}
        torch.onnx.export(model, (x,), str(file), dynamo=False, **how)


def outcome(model: nn.Module, x: Tensor, file: Path) -> str:
    from onnx2torch import convert

    read = convert(str(file)).eval()
    with torch.no_grad():
        gap = max(float((read(part) - model(part)).abs().max()) for part in (x, x[:3]))
    pixels = x.clone().requires_grad_()
    ours, theirs = (torch.autograd.grad(one(pixels).sum(), pixels)[0] for one in (read, model))
    victim = as_victim(read, x)
    found = attention_layers(victim, x).layers
    expected = len(attention_layers(as_victim(model, x), x).layers)
    words = f"logits {gap:.0e}, gradient {float((ours - theirs).abs().max() / theirs.abs().max()):.0e}"
    words += f", attention {len(found)} of {expected}"
    if found:
        with frozen(victim), torch.no_grad():
            same = torch.equal(Rescaled(victim, torch.ones(len(found)))(x), victim(x))
            moved = float((Rescaled(victim, torch.full((len(found),), 0.5))(x) - victim(x)).abs().max())
        words += f", s = 1 {'bit-identical' if same else 'DIFFERS'}, s = 0.5 moves logits by {moved:.2g}"
    return words


def main() -> None:
    import onnx

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    print(f"torch {torch.__version__}, onnx {onnx.__version__}")
    torch.manual_seed(0)
    for name, model in models():
        model.eval()
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(std=parameter[0].numel() ** -0.5)
        x = torch.rand(4, 3, 32, 32)
        for dynamo in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "model.onnx"
                try:
                    export(model, x, file, dynamo=dynamo)
                    opset = onnx.load(str(file)).opset_import[0].version
                    words = outcome(model, x, file)
                except Exception as error:  # noqa: BLE001  # the converter fails on what it does not know in ways of its own
                    words = f"FAILS: {type(error).__name__}: {' '.join(str(error).split())[:110]}"
            print(f"{name:22} opset {opset}: {words}", flush=True)


if __name__ == "__main__":
    main()
