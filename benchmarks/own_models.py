"""Models as strangers hold them, each from the command line to a table in one call, timed.

    python benchmarks/own_models.py             make the files in a temporary folder and run every command
    python benchmarks/own_models.py --only hf

Weights are random: what is shown is that the model is read, attacked and printed, and which word refuses what is not read.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

from tests.models.zoo.own_models import SOURCE

CLIP = """open_clip:ViT-B-32 --arch-kwargs {"class_names":"cifar10","native_size":32} --normalize clip"""
TIMM = "--arch vit_tiny_patch16_224 --normalize imagenet"
ROWS = {
    "hf ViT folder": "vit/",
    "hf DINOv2 classifier folder": "dinov2/",
    "own class": "own.py:MyViT --normalize none",
    "own class and a state dict": "own.pth --model-from own.py:MyViT --normalize none",
    "Lightning .ckpt": "lightning.ckpt --model-from own.py:MyViT --normalize none",
    "TorchScript": "traced.pt --normalize none --unsafe-pickle",
    "TorchScript, not trusted": "traced.pt --normalize none",
    "exported program": "exported.pt2 --normalize none --unsafe-pickle",
    "pickled module": "module.pt --normalize none --unsafe-pickle",
    "timm with model.module.": f"timm.pth {TIMM}",
    "the same, as proposed": f"timm.pth {TIMM} "
    + """--arch-kwargs {"num_classes":10,"patch_size":8,"depth":2,"img_size":32}""",
    "ONNX": "model.onnx --normalize none",
    "CLIP zero-shot": f"clip.pt --arch {CLIP}",
    "hostile: auto_map": "hostile/",
    "hostile: adapter": "adapter/",
    "hostile: a million labels": "labels/",
    "hostile: ../ in keys": "keys.pth --model-from own.py:MyViT --normalize none",
}


def make_files() -> None:
    """The files of every row, in the current folder."""
    import timm

    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    Path("own.py").write_text(SOURCE)
    sys.path.insert(0, "")
    from own import MyViT  # type: ignore[import-not-found]

    own = MyViT().eval()
    state, image = own.state_dict(), torch.rand(1, 3, 32, 32)
    torch.save(state, "own.pth")
    lightning = {f"net.{name}": tensor for name, tensor in state.items()} | {"loss.weight": torch.ones(10)}
    torch.save({f"../../{name}": tensor for name, tensor in state.items()}, "keys.pth")
    torch.save({"state_dict": lightning, "epoch": 3, "hyper_parameters": {"lr": 0.1}}, "lightning.ckpt")
    torch.jit.trace(own, image).save("traced.pt")
    torch.export.save(torch.export.export(own, (image,)), "exported.pt2")
    torch.save(own, "module.pt")
    Path("model.onnx").write_bytes(b"\x08\x07\x12\x07pytorch")
    vit = timm.create_model("vit_tiny_patch16_224", num_classes=10, img_size=32, patch_size=8, depth=2)
    torch.save(
        {"state_dict": {f"model.module.{name}": tensor for name, tensor in vit.state_dict().items()}}, "timm.pth"
    )
    make_folders()
    try:
        import open_clip
    except ImportError:
        return
    torch.save(open_clip.create_model("ViT-B-32", pretrained=None, load_weights=False).state_dict(), "clip.pt")


def make_folders() -> None:
    import json
    import shutil

    import transformers

    transformers.logging.disable_progress_bar()
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}
    for name, kind in (("vit", "ViT"), ("dinov2", "Dinov2")):
        cls = getattr(transformers, f"{kind}ForImageClassification")
        cls(cls.config_class(**sizes, num_labels=10)).save_pretrained(name)
        transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(name)
    for name in ("hostile", "adapter", "labels"):
        shutil.copytree("vit", name)
    config = json.loads(Path("vit/config.json").read_text())
    Path("hostile/config.json").write_text(json.dumps({**config, "auto_map": {"AutoModel": "own.MyViT"}}))
    labels = {str(number): f"class {number}" for number in range(1_000_000)}
    Path("labels/config.json").write_text(json.dumps({**config, "id2label": labels}))
    Path("adapter/adapter_config.json").write_text("{}")


def run(words: str) -> tuple[float, int, str]:
    """Seconds and exit code of one command, and its clean accuracy or its refusal."""
    command = [sys.executable, "-m", "vitattack.cli", "eval", *words.split(), "pgd(steps=5)", "--limit", "16"]
    began = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([*command, "--format", "csv", "--quiet"], capture_output=True, text=True, env=environment)
    seconds = time.perf_counter() - began
    if done.returncode == 0:
        said = " | ".join(line for line in done.stdout.splitlines() if line.startswith(("clean", "pgd")))
    else:
        said = done.stderr.strip().splitlines()[-1]
    return seconds, done.returncode, said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    only = parser.parse_args().only
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        make_files()
        for name, words in ROWS.items():
            if only in name:
                seconds, code, said = run(words)
                print(f"{name}: {seconds:.1f} s, exit {code}\n  $ vitattack eval {words} ...\n  {said}", flush=True)


if __name__ == "__main__":
    main()
