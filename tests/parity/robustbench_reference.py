"""One reference model of RobustBench, filled by `deterministic_weights.py`, saved as its authors save it, with its logits.

Run by `robustbench_models.py` with the interpreter of RobustBench's own environment; prints nothing but its layout.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import types
import warnings
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from deterministic_weights import fill, images


class Stub(types.ModuleType):
    """A module with every attribute: its importers never use it."""

    __path__ = ()

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def stub_modules() -> None:
    """Stand-ins for what the package imports and these models do not use."""
    for name in ("autoattack", "autoattack.state", "gdown", "geotorch", "torchdiffeq"):
        sys.modules[name] = Stub(name)


def reference(name: str, dataset: str) -> torch.nn.Module:
    """The model of RobustBench's zoo, normalisation inside, as its `load_model` builds it."""
    import timm
    from robustbench.model_zoo import model_dicts
    from robustbench.model_zoo.enums import BenchmarkDataset, ThreatModel

    classes = {"imagenet": 1000, "cifar10": 10, "cifar100": 100}[dataset]
    for threat in ("linf", "corruptions"):
        registered = f"{name.lower().replace('-', '_')}_{dataset}_{threat}"
        if timm.is_model(registered):
            return timm.create_model(registered, num_classes=classes)
    build = model_dicts[BenchmarkDataset(dataset)][ThreatModel.Linf][name]["model"]
    return build()


def old_swin(key: str) -> str:
    """The name a tensor had before timm moved the down-sampling of Swin, and in the original code."""
    key = re.sub(r"layers\.(\d+)\.downsample", lambda m: f"layers.{int(m[1]) - 1}.downsample", key)
    return key.replace("head.fc.", "head.")


LAYOUTS = {  # container, prefix, does the file keep derived buffers under old Swin names
    "Debenedetti": ("namespace", "", False),
    "Liu2023Comprehensive_ConvNeXt": ("plain", "", False),
    "Liu2023Comprehensive_Swin": ("plain", "", True),
    "Mo2022When_Swin": ("state_dict", "module.", True),
    "Mo2022When_ViT": ("state_dict", "module.", False),
    "RodriguezMunoz": ("state_dict", "module.model.", True),
    "Singh": ("plain", "module.", False),
    "Xu2024MIMIR": ("plain", "module.", False),
    "Tian": ("model", "", False),
    "Wang": ("plain", "", False),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("dataset")
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    stub_modules()
    torch.set_num_threads(1)
    model = reference(args.name, args.dataset).eval()
    inner = model.model if isinstance(model, torch.nn.Sequential) else model
    container, prefix, old = next(v for key, v in LAYOUTS.items() if args.name.startswith(key))

    rename = old_swin if old else str
    own = inner.state_dict()
    for key, tensor in own.items():
        if tensor.is_floating_point() and not key.endswith("attn_mask"):
            own[key] = torch.from_numpy(fill(rename(key), tuple(tensor.shape)).astype(np.float32))
    inner.load_state_dict(own, strict=True)

    state = {prefix + rename(key): tensor for key, tensor in own.items()}
    if old:  # such files also hold what later versions derive
        for key, buffer in inner.named_buffers():
            if key.endswith(("relative_position_index", "attn_mask")):
                state[prefix + key] = buffer.clone()
        from timm.models.swin_transformer import checkpoint_filter_fn

        bare = {key.removeprefix(prefix): tensor for key, tensor in state.items()}
        back = checkpoint_filter_fn(bare, inner)  # what RobustBench does on loading
        assert back.keys() == own.keys() and all(torch.equal(back[key], own[key]) for key in own)
    content = {
        "plain": state,
        "model": {"model": state},
        "state_dict": {"epoch": 10, "state_dict": state},
        "namespace": {"arch": "xcit", "args": argparse.Namespace(lr=5e-4, eps=4), "epoch": 100, "model": state},
    }[container]
    size = 224 if args.dataset == "imagenet" else 32
    x = torch.from_numpy(images(size))
    with torch.no_grad():
        logits = model(x)
    args.out.mkdir(parents=True, exist_ok=True)
    torch.save(content, args.out / "checkpoint.pth.tar")
    np.savez(args.out / "logits.npz", x=x.numpy(), logits=logits.numpy())
    layout = {key: [list(t.shape), str(t.dtype).removeprefix("torch.")] for key, t in state.items()}
    print(json.dumps({"container": container, "layout": layout}))


main()
