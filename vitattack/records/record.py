"""Per-sample records: plain data, no torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

Status = Literal["clean_wrong", "robust", "fooled", "invalid"]


@dataclass(frozen=True)
class SampleRecord:
    """Outcome of one sample; `adversarial` is the prediction on the candidate, -1 if there is none."""

    index: int
    label: int
    clean: int
    adversarial: int
    status: Status
    size: float
    fragile: bool
    violation: bool
    first_fooled: int
    forwards: int
    backwards: int
    evidence: dict[str, int | float | str] = field(default_factory=dict)
    pass_number: int = 1  # a later pass over survivors writes a sample again; the last record counts

    def line(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def parse(cls, line: str | bytes) -> SampleRecord:
        return cls(**json.loads(line))


# Called with the records just written and the number of samples of the run; the first call brings the stored ones.
RecordListener = Callable[[Sequence[SampleRecord], int], None]
