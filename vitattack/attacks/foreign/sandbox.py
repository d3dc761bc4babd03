"""Other people's attacks behind a fence: their randomness, their output and their mistakes stay inside, and we judge."""

from __future__ import annotations

import contextlib
import hashlib
import io
import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vitattack.attacks import losses
from vitattack.core.errors import VitattackError, first_line
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.models.passes import Passes, counting_passes, spread_passes
from vitattack.models.victim import frozen
from vitattack.threats.base import per_row
from vitattack.threats.lp import LpBall


def seed_of(rng: SampleRng) -> int:
    """One seed for a batch: foreign attacks draw for all rows at once, so it depends on which rows they are."""
    key = hashlib.blake2b(f"{rng.seed}|{rng.path}|{rng.index}".encode(), digest_size=4).digest()
    return int.from_bytes(key, "little")


@contextlib.contextmanager
def seeded(rng: SampleRng) -> Iterator[int]:
    """The global generators of torch, numpy and Python set from `rng`, and all of them restored afterwards."""
    seed = seed_of(rng)
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    try:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        yield seed
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
        if mps is not None:
            torch.mps.set_rng_state(mps)


@contextlib.contextmanager
def quiet() -> Iterator[list[str]]:
    """Nothing is printed; what is said by way of warnings is collected."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("always")
        try:
            yield said
        finally:
            said += [str(warning.message) for warning in caught]


class Single(nn.Module):
    """The victim in float32 for its caller, whatever it computes in: what other packages are written for."""

    def __init__(self, victim: Attackable, dtype: torch.dtype) -> None:
        super().__init__()
        self.victim, self.dtype = victim, dtype

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.victim(x.to(self.dtype))
        return logits.float()


@dataclass(frozen=True)
class Inside:
    """What foreign code is given, and what is known of it afterwards."""

    model: Single
    seed: int
    said: list[str]
    passes: Passes

    def shares(self, x: Tensor) -> dict[str, Tensor]:
        """The counted passes, spread evenly over the samples they were spent on."""
        none = torch.zeros(len(x), dtype=torch.long, device=x.device)
        counted = {"forwards": self.passes.forwards, "backwards": self.passes.backwards}
        return {name: spread_passes(count, none.clone()) for name, count in counted.items()}


@contextlib.contextmanager
def fenced(label: str, victim: Attackable, x: Tensor, rng: SampleRng) -> Iterator[Inside]:
    """Runs foreign code: victim frozen, passes counted, randomness ours, output silenced, failures in one line."""
    with frozen(victim), counting_passes(victim) as passes, seeded(rng) as seed, quiet() as said:
        try:
            yield Inside(Single(victim, x.dtype).eval(), seed, said, passes)
        except VitattackError:
            raise
        except Exception as error:
            from vitattack.core.runtime import out_of_memory

            if out_of_memory(error):
                raise
            raise VitattackError(f"{label} failed: {type(error).__name__} {first_line(error)}".strip()) from error


class Judged(NamedTuple):
    """Candidates that are allowed (x itself in place of others), whether they fool, and who was outside the budget."""

    x_adv: Tensor
    fooled: Tensor
    outside: Tensor


def judged(victim: Attackable, ball: LpBall, x: Tensor, y: Tensor, found: Tensor) -> Judged:
    """What foreign code returned, looked at with our eyes: one forward per sample, and the verdict's where it costs."""
    found = found.detach().to(x.dtype)
    allowed = ball.allows(x, found)
    x_adv = torch.where(per_row(allowed, x), found, x)
    with frozen(victim), torch.no_grad():
        wrong = losses.is_fooled(victim.verdict(x_adv, victim(x_adv)), y)
    return Judged(x_adv, wrong & allowed, ~allowed)
