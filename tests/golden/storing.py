"""Records on disk, and the environment they belong to."""

from __future__ import annotations

import gzip
import hashlib
import json
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

RECORDS = Path(__file__).parent / "records"
PACKAGES = ("torchvision", "timm", "numpy", "pyautoattack", "torchattacks")


@dataclass(frozen=True)
class Record:
    """The lines of samples.jsonl as they stand in the file, and everything else as one JSON object."""

    samples: tuple[str, ...]
    content: dict[str, Any]

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [*self.samples, json.dumps(self.content, separators=(",", ":"))]
        path.write_bytes(gzip.compress("".join(line + "\n" for line in lines).encode(), mtime=0))

    @classmethod
    def read(cls, path: Path) -> Record:
        *samples, content = gzip.decompress(path.read_bytes()).decode().splitlines()
        return cls(tuple(samples), json.loads(content))


def place(folder: Path, name: str) -> Path:
    return folder / f"{name}.jsonl.gz"


@dataclass(frozen=True)
class Environment:
    """Whatever decides the last bits of a forward pass; `arithmetic` is a digest of one, since CPUs differ by more."""

    torch: str
    cpu_capability: str
    machine: str
    arithmetic: str

    def __str__(self) -> str:
        return f"torch {self.torch}, {self.machine} {self.cpu_capability}, arithmetic {self.arithmetic}"


@cache
def here() -> Environment:
    return Environment(
        torch.__version__, torch.backends.cpu.get_cpu_capability(), platform.machine(), _digest_of_arithmetic()
    )


def write_environment(folder: Path) -> None:
    """The environment, and for people the packages and the CPU."""
    content = {**asdict(here()), "packages": {name: _version(name) for name in PACKAGES}, "cpu": _cpu()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "environment.json").write_text(json.dumps(content, indent=2) + "\n")


def read_environment(folder: Path) -> Environment | None:
    path = folder / "environment.json"
    if not path.exists():
        return None
    content = json.loads(path.read_text())
    return Environment(**{key: content[key] for key in ("torch", "cpu_capability", "machine", "arithmetic")})


def _digest_of_arithmetic() -> str:
    """Logits and input gradients of a fixed transformer block and convolution on one thread, in fp32 and bf16."""
    with one_thread():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            stem = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.GELU(), nn.Conv2d(32, 128, 3, 2, 1))
            qkv, head, norm = nn.Linear(128, 384), nn.Linear(128, 10), nn.LayerNorm(128)
            x = torch.rand(32, 3, 32, 32)
        found = hashlib.sha256()
        for dtype in (torch.float32, torch.bfloat16):
            for part in (stem, qkv, head, norm):
                part.to(dtype)
            pixels = x.to(dtype).requires_grad_()
            tokens = norm(stem(pixels).flatten(2).transpose(1, 2))
            q, k, v = qkv(tokens).unflatten(-1, (3, 4, 32)).permute(2, 0, 3, 1, 4)
            fused = nn.functional.scaled_dot_product_attention(q, k, v)
            plain = (q @ k.transpose(-1, -2)).softmax(-1) @ v
            logits = head((fused + plain).transpose(1, 2).flatten(2).mean(1))
            gradient = torch.autograd.grad(logits.logsumexp(1).sum(), pixels)[0]
            for tensor in (logits, gradient):
                found.update(_bytes(tensor))
        return found.hexdigest()[:16]


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums do not depend on the number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def digest_of(tensor: Tensor) -> str:
    """Type, shape and values."""
    about = f"{tensor.dtype} {tuple(tensor.shape)}\n".encode()
    return hashlib.sha256(about + _bytes(tensor)).hexdigest()[:16]


def digest_of_weights(path: Path) -> str:
    """Names, shapes, types and values of the tensors of a safetensors file, not the words beside them."""
    from safetensors.torch import load_file

    found = hashlib.sha256()
    for name, tensor in sorted(load_file(path).items()):
        found.update(f"{name} {digest_of(tensor)}\n".encode())
    return found.hexdigest()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
