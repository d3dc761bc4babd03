"""Stages of `auto` by name and number: its own, then those of the assurance for survivors of a finished run."""

from __future__ import annotations

from vitattack.attacks.autoattack.autoattack import VERSIONS

TAIL = "fp32 tail"
NAMES = ("targets", "view", "apgd margin", "apgd_ce", TAIL)
QUERIES, STEPS = 150, 20  # in the probe
PROBE = (f"square({QUERIES})", f"apgd_ce({STEPS})", f"apgd margin({STEPS})")
STAGES = (*(f"probe {name}" for name in PROBE), *(f"full {name}" for name in VERSIONS["standard"]))
MOST = 8  # largest number of rounds without a budget
