"""The machine under a run: its cores, devices, threads, true float32, and the end of its memory.

torch is imported where it is asked, so that the cores can be counted without it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from vitattack.core.errors import UsageError

if TYPE_CHECKING:
    import torch
    from torch import nn


def usable_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def resolve_device(text: str, model: nn.Module | str | None = None) -> torch.device:
    """`auto` is where a given module lives, else the first GPU there is, else the CPU."""
    import torch
    from torch import nn

    if text == "auto":
        if isinstance(model, nn.Module):
            return next((t.device for t in [*model.parameters(), *model.buffers()]), torch.device("cpu"))
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(text)
    except RuntimeError:
        raise UsageError(f"device '{text}' is not understood: write auto, cpu, cuda, cuda:1 or mps") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"device '{text}': this machine has {torch.cuda.device_count()} CUDA devices; use --device cpu"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError("device 'mps' is not there: use --device cpu")
    if device.type not in ("cpu", "cuda", "mps"):
        raise UsageError(f"device '{text}' is not supported: write auto, cpu, cuda, cuda:1 or mps")
    return device


def several_gpus(device: str) -> list[str]:
    """Values of CUDA_VISIBLE_DEVICES for one GPU each, where a device text leaves the choice among several; else empty."""
    if device not in ("auto", "cuda"):
        return []
    import torch

    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (visible.split(",")[:count] if visible else [str(number) for number in range(count)]) if count > 1 else []


@contextmanager
def numerics(threads: int) -> Iterator[None]:
    """A stated number of threads and true float32, restored afterwards."""
    import torch

    before = torch.get_num_threads()
    tf32 = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = tf32


def out_of_memory(error: BaseException) -> bool:
    import torch

    text = str(error).lower()
    known = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(phrase in text for phrase in known)


def free_memory() -> int | None:
    """Bytes of memory that may still be taken, here and in the container around; None where the system does not say."""
    found = []
    with suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        found.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return max(0, min(found)) if found else None
