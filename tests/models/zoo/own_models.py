"""A module that builds a small transformer, for tests that name it as a user's own code."""

SOURCE = """
import torch
from torch import nn

print("imported")


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) / (d // self.heads) ** 0.5).softmax(-1)
        return (weights @ v).transpose(1, 2).reshape(b, n, d)


class MyViT(nn.Module):
    def __init__(self, dim=16, depth=2, num_classes=10, px=32):
        super().__init__()
        self.patches = nn.Conv2d(3, dim, 8, 8)
        self.positions = nn.Parameter(0.1 * torch.randn(1, (px // 8) ** 2, dim))
        self.blocks = nn.ModuleList(Attention(dim, 2) for _ in range(depth))
        self.head = nn.Linear(dim, num_classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean(1))


class Any(nn.Module):
    def forward(self, x):
        return x.mean((2, 3))


def make_model(**settings):
    return MyViT(**settings)


def broken():
    raise RuntimeError("no such\\nluck")


def number():
    return 3


a_module = MyViT()
"""
