"""Facts about the machine and the versions that a number was computed with."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from vitattack.core.versions import package_versions


def machine_facts(device: torch.device) -> dict[str, Any]:
    """Versions, machine and numerics of this process, and the git state of a checkout."""
    return {
        "versions": package_versions(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "tf32": torch.backends.cuda.matmul.allow_tf32,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "flush_denormal": _flushes_denormals(),
        "git": checkout_state(Path(__file__).resolve().parents[2]),
    }


def _flushes_denormals() -> bool:
    tiny = torch.tensor([1e-40]).float()
    return float(tiny * 1.0) == 0.0


def checkout_state(root: Path) -> dict[str, Any] | None:
    """Commit of a checkout and whether its files were changed; None if it is none.

    Without locks: a process that is killed leaves none behind.
    """
    if not (root / ".git").exists():
        return None
    try:
        head, changes = (
            subprocess.run(
                ["git", "--no-optional-locks", "-C", str(root), *args],
                capture_output=True,
                text=True,
                timeout=5,
                check=True,
            ).stdout
            for args in (["rev-parse", "HEAD"], ["status", "--porcelain"])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": head.strip(), "dirty": bool(changes.strip())}
