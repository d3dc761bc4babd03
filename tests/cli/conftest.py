"""Fixture that runs the command line inside the test process."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from vitattack.cli.main import main

Here = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Here]:
    """The same entry point inside this process, which has torch loaded already."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    handler = signal.getsignal(signal.SIGTERM)

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["vitattack", *words])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capfd.readouterr()
        return subprocess.CompletedProcess(words, int(left.value.code or 0), out, err)

    yield call
    signal.signal(signal.SIGTERM, handler)
