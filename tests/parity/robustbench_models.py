"""Logits of checkpoints in their authors' layouts, here against RobustBench's own classes.

No checkpoint is needed: `robustbench_reference.py` builds each reference class, fills it, saves it as its authors do and
notes the logits; here the file goes through the zoo entry. RobustBench pins an older timm, hence two environments:

    python -m venv rb && rb/bin/pip install --no-deps robustbench==1.1.1 timm==1.0.9
    (torch, torchvision and what they need must be importable there too)
    python tests/parity/robustbench_models.py --python rb/bin/python > docs/evidence/robustbench-parity.txt

`--record` also writes the layouts and a few logits that tests/models/architectures/test_layouts.py keeps.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import timm
import torch

from vitattack.models.victim import frozen
from vitattack.models.zoo.catalogue import zoo_entries
from vitattack.models.zoo.load import load_entry

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.models.architectures.layouts import Layout, path_of

HERE = Path(__file__).parent
BOUND = 1e-5
XCIT = [
    f"rb/Debenedetti2022Light_XCiT-{size}12/{data}" for data in ("imagenet", "cifar10", "cifar100") for size in "SML"
]
CASES = [
    *XCIT,
    "rb/Liu2023Comprehensive_Swin-B",
    "rb/Liu2023Comprehensive_Swin-L",
    "rb/Mo2022When_Swin-B",
    "rb/Mo2022When_ViT-B",
    "rb/RodriguezMunoz2024Characterizing_Swin-B",
    "rb/RodriguezMunoz2024Characterizing_Swin-L",
    "rb/Singh2023Revisiting_ViT-S-ConvStem",
    "rb/Singh2023Revisiting_ViT-B-ConvStem",
    "rb/Singh2023Revisiting_ConvNeXt-T-ConvStem",
    "rb/Singh2023Revisiting_ConvNeXt-S-ConvStem",
    "rb/Singh2023Revisiting_ConvNeXt-B-ConvStem",
    "rb/Singh2023Revisiting_ConvNeXt-L-ConvStem",
    "rb/Liu2023Comprehensive_ConvNeXt-B",
    "rb/Xu2024MIMIR_Swin-B",
    "rb/Xu2024MIMIR_Swin-L",
    "rb/Tian2022Deeper_DeiT-S",
    "rb/Tian2022Deeper_DeiT-B",
    "rb/Wang2023Better_WRN-28-10/cifar10",
    "rb/Wang2023Better_WRN-28-10/cifar100",
    "rb/Wang2023Better_WRN-70-16/cifar10",
]


def compare(name: str, python: str, record: bool) -> tuple[float, float]:
    """The largest difference of two images' logits, and how large the logits are."""
    entry = zoo_entries()[name]
    assert entry.weights is not None
    with tempfile.TemporaryDirectory() as folder:
        told = subprocess.run(
            [python, HERE / "robustbench_reference.py", name.split("/")[1], entry.dataset, folder],
            check=True,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": ""},
        )
        file = Path(folder, "checkpoint.pth.tar")
        wanted = np.load(Path(folder, "logits.npz"))
        here = replace(entry.weights, mirrors=(f"file:{file}",))
        victim = load_entry(replace(entry, weights=here)).victim.eval()
        with frozen(victim), torch.no_grad():
            found = victim(torch.from_numpy(wanted["x"]))
    layout = json.loads(told.stdout.decode().splitlines()[-1])
    if record:
        tensors = {key: (tuple(shape), kind) for key, (shape, kind) in layout["layout"].items()}
        Layout(name, tuple(wanted["logits"][0, :8].tolist()), tensors).write(path_of(name))
    return float((found - torch.from_numpy(wanted["logits"])).abs().max()), float(np.abs(wanted["logits"]).max())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="interpreter of the environment that holds RobustBench")
    parser.add_argument("--only", nargs="+", default=[""], help="only the cases whose id contains one of these")
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    versions = subprocess.run(
        [args.python, "-c", "import importlib.metadata as m; print(m.version('robustbench'), m.version('timm'))"],
        check=True,
        stdout=subprocess.PIPE,
    )
    theirs = versions.stdout.decode().split()
    print(f"RobustBench {theirs[0]} with timm {theirs[1]} against vitattack with timm {timm.__version__}, ", end="")
    print(f"torch {importlib.metadata.version('torch')}; logits of two random images, bound {BOUND:g}")
    bad = 0
    with tempfile.TemporaryDirectory() as home:
        os.environ["VITATTACK_HOME"] = home
        for name in CASES:
            if any(part in name for part in args.only):
                difference, size = compare(name, args.python, args.record)
                bad += difference > BOUND
                verdict = "ok" if difference <= BOUND else "DIFFERS"
                print(
                    f"{name:48} largest difference {difference:.1e} of logits up to {size:5.2f}  {verdict}", flush=True
                )
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
