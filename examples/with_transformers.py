"""A model of Hugging Face transformers, saved as a folder and evaluated from there, normalisation included."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

import vitattack

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--images", type=int, default=64)
    options.add_argument("--folder", type=Path, default=Path("my-vit"))
    given = options.parse_args()

    torch.manual_seed(0)
    config = ViTConfig(
        image_size=32,
        patch_size=8,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        id2label=dict(enumerate(CLASSES)),
        label2id={name: number for number, name in enumerate(CLASSES)},
    )
    model = ViTForImageClassification(config)  # an untrained one, where yours would be
    model.save_pretrained(given.folder)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(given.folder)

    # The folder says all there is to say: architecture, normalisation, size, names of the classes.
    evaluation = vitattack.evaluate(str(given.folder), ["fgsm", "pgd"], data="cifar10-demo", limit=given.images)
    print(evaluation)

    # The same model as an object: its output with .logits is understood, its input is what the processor would make.
    x, y = vitattack.load_data("cifar10-demo", limit=given.images).read(range(given.images))
    found = vitattack.evaluate(model.eval(), "fgsm", data=(x, y))
    print(f"without the normalisation of the folder: clean {found.clean.accuracy:.0%}")


if __name__ == "__main__":
    main()
