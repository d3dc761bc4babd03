"""Double precision wherever a device has it."""

from __future__ import annotations

from torch import Tensor


def in_double(values: Tensor) -> Tensor:
    """The values in float64, without a graph; on the CPU where the device has none."""
    values = values.detach()
    return values.cpu().double() if values.device.type == "mps" else values.double()
