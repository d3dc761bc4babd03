"""Stages of `auto` by name and number: its own, those of the assurance, those for models without gradients they can trust."""

from __future__ import annotations

from vitattack.attacks.autoattack.autoattack import VERSIONS

TAIL = "fp32 tail"
TIES = "near ties"  # on survivors so near to the boundary that luck decides
IN_FP32 = (TAIL, TIES)  # whatever the precision of the search
NAMES = ("targets", "view", "apgd margin", "apgd_ce", TAIL, TIES)
QUERIES, STEPS = 1000, 20  # in the probe
PROBE = (f"square({QUERIES})", f"apgd_ce({STEPS})", f"apgd margin({STEPS})")
FULL = (*VERSIONS["standard"], "targets", "longer targets")
STAGES = (*(f"probe {name}" for name in PROBE), *(f"full {name}" for name in FULL))
BLIND = ("blind random", "blind square")  # of logits alone, where the model has no gradient
DETOUR = "straight-through"  # through substitute gradients, where the model's own cannot be trusted
AVERAGED = "averaged"  # on gradients averaged over answers of a random model
BLACK_BOX = "square"  # on the nearest survivors of a model whose gradients cannot be trusted
LOGITS_ONLY = (*BLIND, BLACK_BOX)
SELDOM = (*BLIND, DETOUR, AVERAGED, BLACK_BOX)  # stages that most models never see
ALL = (*NAMES, *STAGES, *SELDOM)
MOST = 8  # largest number of rounds without a budget
