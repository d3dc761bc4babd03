"""A transformer of two blocks with weights of its own, so that golden pixels hang on no zoo."""

from __future__ import annotations

import torch
from torch import Tensor, nn

PX, PATCH, WIDTH, HEADS, CLASSES, IMAGES = 32, 8, 32, 2, 10, 12
SHARP = 20  # attention that saturates, so that looking through scaled scores finds what plain gradients miss


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.place = nn.Parameter(0.1 * torch.randn(1, (PX // PATCH) ** 2, WIDTH))
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x).flatten(2).transpose(1, 2) + self.place
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(tokens.mean(1))


def toy() -> tuple[Toy, Tensor, Tensor]:
    """The model, smooth images, and its own predictions as their labels; biases centred, so that it sees many classes."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = Toy().eval()
        for block in model.blocks:
            block.qkv.weight[: 2 * WIDTH] *= SHARP
        many = nn.functional.interpolate(torch.rand(64 + IMAGES, 3, 4, 4), size=PX, mode="bilinear")
        model.head.bias -= model(many[IMAGES:]).mean(0)
        model.head.weight *= 30
        model.head.bias *= 30
        return model, many[:IMAGES], model(many[:IMAGES]).argmax(1)
