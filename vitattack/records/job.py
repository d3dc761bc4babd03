"""One attack on one model, as text: everything that can change a record, and nothing else, makes the key."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Job:
    """Texts are canonical; `weights` and `pixels` are digests of what the texts stood for."""

    model: str
    attack: str
    threat: str
    data: str
    weights: str
    pixels: str
    calibration: str = ""  # text and digest of the images an attack learns from, where it does
    seed: int = 0
    batch_size: int = 64
    precision: str = "fp32"
    threads: int = 1
    device: str = "cpu"

    @property
    def key(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def folder(self) -> str:
        """A name a person can recognise, made unique by the key."""
        slug = re.sub(r"[^a-zA-Z0-9.]+", "-", f"{self.model}-{self.attack}-{self.threat}").strip("-.")
        return f"{slug[:80]}-{self.key}"
