"""Jobs: one attack on one model, as texts and digests. The key covers all that can change a record, and nothing else."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass

from vitattack.records.next_command import next_diagnosis, next_eval

# Raised whenever equal jobs give other records than before: a change of an algorithm, a constant or a verdict.
RECORDS = 7


@dataclass(frozen=True)
class Job:
    """Texts are canonical; `weights` and `pixels` are digests of what the texts stood for, `settings` what the attack's did."""

    model: str
    attack: str
    threat: str
    data: str
    weights: str
    pixels: str
    calibration: str = ""  # text and digest of the images that the attack learns from, if it does
    seed: int = 0
    batch_size: int = 64
    precision: str = "fp32"
    threads: int = 1
    device: str = "cpu"
    settings: str = ""  # every setting of the attack, defaults included
    records: int = RECORDS

    @property
    def key(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    def next_run(self, attack: str) -> str:
        """The next command to run, as doubts name it: another attack on the same model, threat and data."""
        return f"next: {next_eval(attack, self.model, self.threat, self.data)}"

    @property
    def next_diagnosis(self) -> str:
        """The next command to run where attention misleads."""
        return f"next: {next_diagnosis(self.model)}"

    @property
    def folder(self) -> str:
        """A readable name, made unique by the key."""
        slug = re.sub(r"[^a-zA-Z0-9.]+", "-", f"{self.model}-{self.attack}-{self.threat}").strip("-.")
        return f"{slug[:80]}-{self.key}"
