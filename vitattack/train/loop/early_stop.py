"""Early stops: collapse of clean accuracy and catastrophic overfitting of one-step training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from vitattack.core.errors import VitattackError

# One-step accuracy this far above PGD's, with PGD's below this share of its best: one-step gradients mislead.
GAP, LOST = 0.2, 0.5
LEAST = 0.1  # robust accuracy that was never reached, as while the budget still grows, cannot be lost

AGAINST_NAN = "lower the learning rate, add grad_clip(1.0) or use precision=fp32"


class TrainingStopped(VitattackError):
    """Training went wrong in a way that more training does not mend."""


@dataclass
class EarlyStop:
    """Tracks the best accuracies so far and notices when they are lost for good."""

    num_classes: int
    attacking: bool = True  # standard training has no robust accuracy to lose
    clean: float = 0.0
    robust: float = 0.0

    def reason(self, numbers: dict[str, float]) -> str | None:
        """The reason to stop, or None."""
        loss, clean, robust = numbers["loss"], numbers.get("clean"), numbers.get("robust")
        if not math.isfinite(loss):
            return f"the loss is NaN or infinite: {AGAINST_NAN}"
        chance = 1 / self.num_classes
        if clean is not None:
            if self.clean > 3 * chance and clean < max(1.5 * chance, 0.4 * self.clean):
                return (
                    f"clean accuracy collapsed from {self.clean:.1%} to {clean:.1%}: lower the learning rate, "
                    "or warm up the budget with eps_warmup"
                )
            self.clean = max(self.clean, clean)
        if robust is not None:
            one_step = numbers.get("one_step", robust)
            lost = self.robust > LEAST and robust < LOST * self.robust
            if self.attacking and lost and one_step - robust > GAP:
                return (
                    f"catastrophic overfitting: PGD-10 leaves {robust:.1%} (once {self.robust:.1%}), one step "
                    f"{one_step:.1%}: use fgsm(kind=n) with more noise, or pgd_at with 2 steps"
                )
            self.robust = max(self.robust, robust)
        return None

    def warning(self, numbers: dict[str, float]) -> str | None:
        """A warning of possible overfitting from the first epoch on; an early model looks alike, so it is no reason to stop."""
        robust = numbers.get("robust")
        if robust is None or not self.attacking or self.robust > LEAST:
            return None
        one_step = numbers.get("one_step", robust)
        if one_step - robust <= GAP:
            return None
        return (
            f"one step leaves {one_step:.1%} and PGD-10 {robust:.1%}, which never was above {LEAST:.0%}: if this stays, "
            "one-step gradients mislead from the start; use fgsm(kind=n) with more noise, or pgd_at with 2 steps"
        )

    def state_dict(self) -> dict[str, Any]:
        return {"clean": self.clean, "robust": self.robust}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.clean, self.robust = float(state["clean"]), float(state["robust"])
