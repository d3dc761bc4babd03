"""Provenance of a number: versions, machine, numerics, digests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from vitattack.core.machine import machine_facts
from vitattack.records.job import Job


def provenance(
    device: torch.device, job: Job, protocol: Mapping[str, Any], workers: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Versions, machine, numerics, digests of the inputs and, in a checkout, the git state."""
    return {
        "seed": job.seed,
        "weights_sha256": job.weights,
        "data_sha256": job.pixels,
        "protocol": dict(protocol),
        "threads": job.threads,
        **({"workers": dict(workers)} if workers else {}),
        "precision": job.precision,
        **machine_facts(device),
    }
