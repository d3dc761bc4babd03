"""Robust accuracy as a metric of PyTorch Lightning: a callback attacks after every epoch, and `auto` judges at the end."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import vitattack

try:
    import lightning as L
except ImportError:
    import pytorch_lightning as L


class Classifier(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(4096, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.net(x)
        return out

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        x, y = batch
        return F.cross_entropy(self(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class RobustAccuracy(L.Callback):
    """Logs clean and robust accuracy of a few images after each epoch. Mode, gradients and devices are left as they were."""

    def __init__(
        self, x: torch.Tensor, y: torch.Tensor, attack: str = "pgd(steps=5)", threat: str = "linf:2/255"
    ) -> None:
        self.data, self.attack, self.threat = (x, y), attack, threat

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        found = vitattack.evaluate(module, self.attack, threat=self.threat, data=self.data)
        module.log_dict({"clean": found.clean.accuracy, "robust": found.worst_case.accuracy})


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--images", type=int, default=500)
    options.add_argument("--epochs", type=int, default=3)
    given = options.parse_args()

    images = vitattack.load_data("cifar10-demo")
    x, y = images.read(images.rows[: given.images])
    held_out = images.read(images.rows[given.images : given.images + 64])

    L.seed_everything(0)
    module = Classifier()
    trainer = L.Trainer(
        max_epochs=given.epochs,
        callbacks=[RobustAccuracy(*held_out)],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(module, DataLoader(TensorDataset(x, y), batch_size=50, shuffle=True))
    print({name: round(float(value), 3) for name, value in trainer.callback_metrics.items()})
    print(vitattack.evaluate(module, "auto", threat="linf:2/255", data=held_out))


if __name__ == "__main__":
    main()
