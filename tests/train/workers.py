"""One process of a distributed run, started by torchrun: `python -m tests.train.workers CASE OUT`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

from tests.train.small_runs import SHAPE, run, small
from vitattack.train.loop.reporter import Reporter, Row
from vitattack.train.session_options import SessionOptions

PLAIN = {"hooks": (), "augment": ("crop", "flip"), "batch_size": 16, "epochs": 8, "arch_kwargs": SHAPE, "probe": 4}
CASES = {
    "standard": {"objective": "standard", "optimiser": "sgd(lr=0.05)"},
    "pgd_at": {"objective": "pgd_at(inner=pgd(steps=3))", "optimiser": "sgd(lr=0.05)", "epochs": 1},
    "hooks": {"objective": "trades", "hooks": ("awp", "ema(0.9)", "grad_clip(1)"), "epochs": 1},
}


class DieOnce(Reporter):
    """Kills the first incarnation of a worker at a step, and spares the one that torchrun starts next."""

    def step(self, row: Row) -> None:
        if row["step"] == 17 and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    torch.set_num_threads(1)
    case, out = sys.argv[1], Path(sys.argv[2])
    reporter = DieOnce() if case == "killed" else None
    recipe = small(**{**PLAIN, **CASES["standard" if case == "killed" else case]})
    options = {"save_every": 5, "log_every": 1}
    assert SessionOptions(**options)
    run(recipe, out, reporter, **options)


if __name__ == "__main__":
    main()
