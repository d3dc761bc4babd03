"""Sandbox for attacks of other packages: isolated randomness, silenced output, one-line failures and our own verdicts."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitattack.attacks.losses.base import fools
from vitattack.core.errors import VitattackError, first_line
from vitattack.core.rng import SampleRng, seeded
from vitattack.core.runtime import out_of_memory
from vitattack.models.base import Attackable
from vitattack.models.lost_gradients import lost_gradients_named
from vitattack.models.passes import Passes, counting_passes, spread_passes
from vitattack.models.victim import frozen
from vitattack.threats.base import per_row
from vitattack.threats.lp import LpBall


@contextlib.contextmanager
def quiet() -> Iterator[list[str]]:
    """Silence output and collect the texts of warnings."""
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("always")
        try:
            yield messages
        finally:
            messages += [str(warning.message) for warning in caught]


class Single(nn.Module):
    """Float32 interface to a victim of any precision, as other packages expect."""

    def __init__(self, victim: Attackable, dtype: torch.dtype) -> None:
        super().__init__()
        self.victim, self.dtype = victim, dtype

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.victim(x.to(self.dtype))
        return logits.float()


@dataclass(frozen=True)
class SandboxedCall:
    """Model and seed for foreign code, with its warnings and passes after the call."""

    model: Single
    seed: int
    warnings: list[str]
    passes: Passes

    def shares(self, x: Tensor) -> dict[str, Tensor]:
        """Counted passes, spread evenly over the samples."""
        none = torch.zeros(len(x), dtype=torch.long, device=x.device)
        counted = {"forwards": self.passes.forwards, "backwards": self.passes.backwards}
        return {name: spread_passes(count, none.clone()) for name, count in counted.items()}


@contextlib.contextmanager
def sandboxed(label: str, victim: Attackable, x: Tensor, rng: SampleRng) -> Iterator[SandboxedCall]:
    """Run foreign code with the victim frozen, passes counted, generators seeded, output silenced, failures in one line."""
    with frozen(victim), counting_passes(victim) as passes, seeded(rng) as seed, quiet() as messages:
        try:
            with lost_gradients_named(victim, x):
                yield SandboxedCall(Single(victim, x.dtype).eval(), seed, messages, passes)
        except VitattackError:
            raise
        except Exception as error:
            if out_of_memory(error):
                raise
            raise VitattackError(f"{label} failed: {type(error).__name__} {first_line(error)}".strip()) from error


class JudgedCandidates(NamedTuple):
    """Admissible candidates (x in place of others), verdicts, and rows whose candidate was outside the budget."""

    x_adv: Tensor
    fooled: Tensor
    outside: Tensor


def judge_candidates(victim: Attackable, ball: LpBall, x: Tensor, y: Tensor, candidates: Tensor) -> JudgedCandidates:
    """Check the budget and the verdicts of foreign candidates, at one query per sample."""
    candidates = candidates.detach().to(x.dtype)
    allowed = ball.allows(x, candidates)
    x_adv = torch.where(per_row(allowed, x), candidates, x)
    with frozen(victim), torch.no_grad():
        wrong = fools(victim, x_adv, victim.verdict(x_adv, victim(x_adv)), y)
    return JudgedCandidates(x_adv, wrong & allowed, ~allowed)
