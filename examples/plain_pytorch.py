"""Adversarial training and evaluation of a plain PyTorch model: the loop is yours, the attack and the referee are vitattack's."""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional as F

import vitattack


class SmallNet(nn.Module):
    """Pixels in [0,1] to logits: normalisation belongs to the model."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, 2, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(4096, 10),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers((x - 0.5) / 0.25)
        return out


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--images", type=int, default=500, help="for training; half as many for evaluation")
    options.add_argument("--epochs", type=int, default=5)
    given = options.parse_args()

    images = vitattack.load_data("cifar10-demo")
    x, y = images.read(images.rows[: given.images])
    held_out = images.read(images.rows[given.images : given.images + given.images // 2])

    torch.manual_seed(0)
    model = SmallNet()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    attack = vitattack.attack("pgd(steps=3, stop=never)", threat="linf:8/255")
    for epoch in range(given.epochs):
        for rows in torch.randperm(len(x)).split(50):
            x_adv = attack(model, x[rows], y[rows], seed=epoch).x_adv
            loss = F.cross_entropy(model(x_adv), y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}")

    evaluation = vitattack.evaluate(model.eval(), ["pgd", "auto"], threat="linf:8/255", data=held_out)
    print(evaluation)
    print(*evaluation.doubts, sep="\n")


if __name__ == "__main__":
    main()
