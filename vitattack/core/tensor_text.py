"""Tensors of float32 in JSON, to the bit: their shape, and their bytes in base64."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


def packed(values: Tensor) -> dict[str, Any]:
    floats = values.detach().cpu().float().numpy()
    return {"shape": list(floats.shape), "float32": base64.b64encode(floats.tobytes()).decode()}


def unpacked(content: Mapping[str, Any]) -> Tensor:
    values = np.frombuffer(base64.b64decode(content["float32"]), dtype=np.float32)
    return torch.from_numpy(values.copy()).view(content["shape"])
