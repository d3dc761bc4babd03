"""Zero gradients of a run and their cause: a loss that saturates, or a model that has no gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from vitattack.models.lost_gradients import find_lost_gradient
from vitattack.models.victim import Victim
from vitattack.records.record import SampleRecord

CHECKED = 8  # images whose gradient is computed anew


def zero_gradient_doubts(
    records: Sequence[SampleRecord], victim: Victim, images: Callable[[Sequence[int]], Tensor]
) -> list[str]:
    """The doubt about samples that gave attacks no gradient, with what to try; `images` reads rows."""
    attacked = sum(record.clean == record.label for record in records)
    flat = [record.index for record in records if record.evidence.get("zero_grad")]
    if not flat:
        return []
    lost = find_lost_gradient(victim, images(flat[:CHECKED]))
    if lost is not None and lost.cause != "zero":
        return [
            f"the model gives no gradient: {lost}; only its logits were used. Give gradient attacks a model whose "
            "backward passes that step, or use vitattack transfer"
        ]
    found = f"{len(flat)} of {attacked} attacked samples gave an exactly zero gradient"
    if lost is not None:
        return [
            f"{found}, and so do the logits themselves ({lost}): no loss helps; try square, or give gradient attacks a "
            "model whose backward passes that step"
        ]
    return [f"{found}: try margin, dlr or mifpe, and square if theirs is zero too"]
