"""The command that makes a stored run again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from vitattack.records.job import Job

DEFAULTS: Mapping[str, Any] = {"--seed": 0, "--batch-size": 64, "--precision": "fp32"}


def command_of(job: Job, model: Mapping[str, Any]) -> str | None:
    """The words of `vitattack eval` for a job; None if its model or images were handed over from Python."""
    if model.get("source") == "module" or job.data.startswith("tensors:"):
        return None
    options: dict[str, Any] = {"--threat": job.threat, "--data": job.data, **_checkpoint(model)}
    if job.calibration:
        options["--calibration"] = job.calibration.rpartition(" ")[0]
    options |= {"--seed": job.seed, "--batch-size": job.batch_size, "--precision": job.precision}
    options |= {"--threads": job.threads, "--device": job.device}
    words = ["vitattack", "eval", job.model, job.attack]
    for name, value in options.items():
        if value is not None and DEFAULTS.get(name) != value:
            words += [name, str(value)]
    return shlex.join(words)


def _checkpoint(model: Mapping[str, Any]) -> dict[str, Any]:
    """The options that describe a checkpoint file, of a model that was read from one."""
    if model.get("source") != "file":
        return {}
    kwargs = model.get("arch_kwargs")
    return {
        "--arch": model.get("arch"),
        "--arch-kwargs": json.dumps(kwargs) if kwargs else None,
        "--normalize": model.get("normalize"),
        "--adapter": model.get("adapter"),
    }
