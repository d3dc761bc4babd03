"""Calls in new processes: what they return, raise, and how they die."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from vitattack.core.errors import UsageError
from vitattack.core.new_process import Call, Died


def told(answer: str) -> str:
    sys.stdout.write("models may print\n")
    if answer == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if answer == "raise":
        raise UsageError("cause and fix")
    return f"{answer} on {os.environ['CUDA_VISIBLE_DEVICES']}"


def test_a_new_process_answers_raises_or_dies() -> None:
    calls = {
        answer: Call(f"{__name__}:told", {"answer": answer}, {"CUDA_VISIBLE_DEVICES": "6"})
        for answer in ("here", "raise", "die")
    }
    assert calls["here"].result() == "here on 6"
    with pytest.raises(UsageError, match="cause and fix"):
        calls["raise"].result()
    with pytest.raises(Died, match="signal 9"):
        calls["die"].result()
    for call in calls.values():
        call.kill()
