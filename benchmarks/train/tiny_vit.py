"""Train the embedded models on CIFAR-10: `tiny-vit` by N-FGSM adversarial training, the `-standard` ones plainly.

    python benchmarks/train/tiny_vit.py --data-dir CIFAR10_PARQUET --out runs/tiny-vit --objective nfgsm --epochs 13
    python benchmarks/train/tiny_vit.py --data-dir CIFAR10_PARQUET --out runs/tiny-std --objective standard --epochs 15
    python benchmarks/train/tiny_vit.py --data-dir CIFAR10_PARQUET --out runs/tiny-sat --epochs 2 --lr 2e-4 \
        --init embedded/tiny-vit.safetensors --query-scale 30
    python benchmarks/train/tiny_vit.py --data-dir CIFAR10_PARQUET --out runs/tiny-cnn --objective standard \
        --arch tiny_cnn_32 --epochs 15 --lr 4e-3

One thread, bf16 autocast. Every epoch ends with an atomic checkpoint; the same command resumes from the last one.
N-FGSM: de Jorge et al., "Make Some Noise: Reliable and Efficient Single-Step Adversarial Training", NeurIPS 2022.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from timm.layers import set_fused_attn
from torch import Tensor, nn

from vitattack.data.formats.decoding import decode_rgb
from vitattack.models.architectures.small import SMALL

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)


def read_split(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    (path,) = sorted(folder.rglob(f"{split}-*.parquet"))
    table = pq.read_table(path)
    images = [decode_rgb(row["bytes"], f"{path.name} row {i}") for i, row in enumerate(table["img"].to_pylist())]
    return torch.stack(images), torch.tensor(table["label"].to_pylist())


@torch.no_grad()
def scale_queries(model: nn.Module, factor: float) -> None:
    """Multiply attention scores through the query weights: the planted saturation of `tiny-vit-saturated`."""
    for block in model.blocks:
        width = block.attn.qkv.in_features
        block.attn.qkv.weight[:width] *= factor
        block.attn.qkv.bias[:width] *= factor


def augment(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Pad-4 random crop and horizontal flip of a uint8 batch, in bulk."""
    n, _, height, width = pixels.shape
    padded = F.pad(pixels, (4, 4, 4, 4))
    top, left = (torch.randint(0, 9, (n,), generator=generator) for _ in range(2))
    rows = top[:, None] + torch.arange(height)
    cols = left[:, None] + torch.arange(width)
    flip = torch.rand(n, generator=generator) < 0.5
    cols = torch.where(flip[:, None], cols.flip(1), cols)
    batch = torch.arange(n)[:, None, None]
    return padded.permute(0, 2, 3, 1)[batch, rows[:, :, None], cols[:, None, :]].permute(0, 3, 1, 2)


def normalise(x: Tensor) -> Tensor:
    return (x - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]


def logits_of(model: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out: Tensor = model(normalise(x))
    return out.float()


def nfgsm(model: nn.Module, x: Tensor, y: Tensor, eps: float, generator: torch.Generator) -> Tensor:
    """One signed step of eps from noise of twice the budget; neither is clipped to the ball."""
    noise = torch.empty_like(x).uniform_(-2 * eps, 2 * eps, generator=generator)
    start = (x + noise).clamp(0, 1).requires_grad_()
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.requires_grad_(False)
    (grad,) = torch.autograd.grad(F.cross_entropy(logits_of(model, start), y, reduction="sum"), start)
    for parameter in parameters:
        parameter.requires_grad_(True)
    return (start.detach() + eps * grad.sign()).clamp(0, 1)


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.eval()
    hits = [(model(normalise(a.float() / 255)).argmax(1) == b).sum() for a, b in zip(x.split(500), y.split(500))]
    return float(sum(hits)) / len(y)


def pgd_probe(model: nn.Module, x: Tensor, y: Tensor, eps: float, steps: int = 10) -> float:
    model.eval()
    x = x.float() / 255
    x_adv = x.clone()
    for _ in range(steps):
        x_adv.requires_grad_()
        loss = F.cross_entropy(model(normalise(x_adv)), y, reduction="sum")
        (grad,) = torch.autograd.grad(loss, x_adv)
        x_adv = (x_adv.detach() + eps / 4 * grad.sign()).clamp(x - eps, x + eps).clamp(0, 1)
    with torch.no_grad():
        return float((model(normalise(x_adv)).argmax(1) == y).float().mean())


def rounded(value: Tensor) -> Tensor:
    """Round floats to float16, as in the export; counters stay."""
    return value.half() if value.is_floating_point() else value


def one_cycle(step: int, total: int, peak: float, warm: float = 0.2) -> float:
    """Linear up to `peak`, then cosine to zero."""
    at = step / total
    if at < warm:
        return peak * (0.04 + 0.96 * at / warm)
    return peak * 0.5 * (1 + math.cos(math.pi * (at - warm) / (1 - warm)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--arch", choices=sorted(SMALL), default="tiny_vit_32")
    parser.add_argument("--objective", choices=["nfgsm", "standard"], default="nfgsm")
    parser.add_argument("--epochs", type=int, default=13)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--label-smoothing", type=float, default=0.1)
    parser.add_argument("--ema", type=float, default=0.998)
    parser.add_argument("--eps", type=float, default=8 / 255)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--init", type=Path, help="start from these weights instead of random ones")
    parser.add_argument("--query-scale", type=float, default=1.0, help="factor on the initial query weights")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    torch.set_num_threads(1)
    set_fused_attn(False)  # the fused CPU backward is slow in bf16
    torch.manual_seed(args.seed)
    model = SMALL[args.arch]()
    if args.init:
        model.load_state_dict({name: value.float() for name, value in load_file(args.init).items()})
    if args.query_scale != 1:
        scale_queries(model, args.query_scale)
    average = SMALL[args.arch]()
    average.load_state_dict(model.state_dict())
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": args.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=args.lr)
    generator = torch.Generator().manual_seed(args.seed)
    train_x, train_y = read_split(args.data_dir, "train")
    test_x, test_y = read_split(args.data_dir, "test")
    per_epoch = len(train_y) // args.batch_size
    total = args.epochs * per_epoch
    first = 0
    checkpoint = args.out / "last.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        average.load_state_dict(state["average"])
        optimiser.load_state_dict(state["optimiser"])
        generator.set_state(state["generator"])
        first = state["epoch"]

    for epoch in range(first, args.epochs):
        began = time.time()
        model.train()
        order = torch.randperm(len(train_y), generator=generator)
        running = 0.0
        for i in range(per_epoch):
            step = epoch * per_epoch + i
            for group in optimiser.param_groups:
                group["lr"] = one_cycle(step, total, args.lr)
            rows = order[i * args.batch_size : (i + 1) * args.batch_size]
            x, y = augment(train_x[rows], generator).float() / 255, train_y[rows]
            if args.objective == "nfgsm":
                x = nfgsm(model, x, y, args.eps, generator)
            loss = F.cross_entropy(logits_of(model, x), y, label_smoothing=args.label_smoothing)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            decay = min(args.ema, (1 + step) / (10 + step))
            with torch.no_grad():
                for mean, value in zip(average.state_dict().values(), model.state_dict().values()):
                    if mean.is_floating_point():
                        mean.lerp_(value, 1 - decay)
                    else:  # a counter of batches
                        mean.copy_(value)
            running += float(loss.detach())
            if i % 50 == 0:
                print(
                    f"epoch {epoch} step {i}/{per_epoch} loss {running / (i + 1):.3f} {time.time() - began:.0f}s",
                    flush=True,
                )
        row = {
            "epoch": epoch + 1,
            "loss": round(running / per_epoch, 4),
            "clean": accuracy(average, test_x[:2000], test_y[:2000]),
            "pgd10": pgd_probe(average, test_x[:300], test_y[:300], args.eps),
            "seconds": round(time.time() - began),
        }
        with (args.out / "log.jsonl").open("a") as log:
            log.write(json.dumps(row) + "\n")
        state = {
            "model": model.state_dict(),
            "average": average.state_dict(),
            "optimiser": optimiser.state_dict(),
            "generator": generator.get_state(),
            "epoch": epoch + 1,
        }
        torch.save(state, checkpoint.with_suffix(".tmp"))
        checkpoint.with_suffix(".tmp").replace(checkpoint)
        half = {name: rounded(value).contiguous() for name, value in average.state_dict().items()}
        save_file(half, args.out / "weights.safetensors")
        print(row, flush=True)

    average.load_state_dict({name: rounded(value) for name, value in average.state_dict().items()})
    print("clean on the whole test set, as exported in float16:", accuracy(average, test_x, test_y))


if __name__ == "__main__":
    main()
