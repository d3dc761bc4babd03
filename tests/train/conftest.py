from __future__ import annotations

import pytest

from tests.train.small_runs import run, small
from vitattack.train.run_folder import TrainedRun


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    """An uninterrupted run: crop and flip, stochastic depth, N-FGSM with a warm-up, AWP, EMA, clipping."""
    return run(small(), tmp_path_factory.mktemp("whole"), save_every=4, log_every=1)
