"""What was recorded for those who must not import torch is what torch says."""

from __future__ import annotations

import json

from vitattack.bench.plan import facts, record
from vitattack.data.catalogue import DATA_SETS

CONTENT = json.loads(facts.FILE.read_text())
AGAIN = "run python benchmarks/record_facts.py"


def test_data_sets_are_as_recorded() -> None:
    assert CONTENT["data"] == record.data_sets(), AGAIN
    assert all(facts.data_sets()[name].rows == DATA_SETS[name].rows for name in DATA_SETS)
